"""A terminal as data: what a program wrote to a pty becomes lines of text, and lines become an SVG.

The emulator knows what this project's commands write (a clock and a bar that are erased and drawn again) and raises
on any other sequence, so that nothing is drawn wrongly in silence. It drops colours: only the bars have them, and
those are gone at the end. The SVG holds selectable text and loads nothing: it names the reader's own monospace fonts,
and gives every piece its width, so that columns stay aligned in any of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

TOKEN = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<command>[A-Za-z])|(?P<char>.)", re.S)
TAB = 8
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
FONT_PX, CELL_PX, ROW_PX, MARGIN_PX, BAR_PX = 14, 8.4, 19, 20, 34

Line = tuple[tuple[str, str], ...]
"""Pieces of text with the classes that style each: of `bold`, and one colour of the theme."""


def text_of(line: Line) -> str:
    """The text of a drawn line."""
    return "".join(text for text, _ in line)


class TerminalLines:
    """The lines of a terminal that is wide and high enough for all of them."""

    def __init__(self, written: str) -> None:
        """ValueError for a sequence in `written` that is not known here."""
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        for found in TOKEN.finditer(written):
            if found["command"]:
                self._obey(found["command"], found["numbers"])
            else:
                self._write(found["char"])

    def lines(self) -> list[str]:
        """All lines up to the last with text, without spaces at their ends."""
        return "\n".join("".join(line).rstrip() for line in self._lines).rstrip("\n").split("\n")

    def _write(self, char: str) -> None:
        if char == "\r":
            self._column = 0
        elif char == "\n":
            self._row += 1
            self._lines += [[] for _ in range(self._row + 1 - len(self._lines))]
        elif char == "\t":
            self._column = (self._column // TAB + 1) * TAB
        elif char >= " ":
            line = self._lines[self._row]
            line += " " * (self._column - len(line))
            line[self._column : self._column + 1] = char
            self._column += 1
        else:
            raise ValueError(f"no such control character is known: {char!r}")

    def _obey(self, command: str, numbers: str) -> None:
        if command == "A":
            self._row = max(0, self._row - int(numbers or 1))
        elif command == "K" and numbers in ("", "0"):
            del self._lines[self._row][self._column :]
        elif command == "K" and numbers == "2":
            self._lines[self._row].clear()
        elif not (command == "m" or numbers.startswith("?")):  # a colour; the cursor is hidden or shown
            raise ValueError(f"no such sequence is known: CSI {numbers}{command}")


def draw(lines: Sequence[Line], columns: int, title: str, about: str, theme: Mapping[str, str]) -> str:
    """An SVG of a window with these lines, none longer than `columns`.

    `theme` gives the colours of `ground`, `bar`, `edge` and `text`, and of each further class. A screen reader reads
    `title` and `about` in place of the picture.
    """
    width = round(columns * CELL_PX + 2 * MARGIN_PX)
    height = BAR_PX + len(lines) * ROW_PX + round(1.5 * MARGIN_PX)
    classes = (
        f".{name} {{ fill: {colour}; }}" for name, colour in theme.items() if name not in ("ground", "bar")
    )
    discs = "".join(
        f'<circle cx="{MARGIN_PX + 6 + 20 * place}" cy="{BAR_PX // 2}" r="5.5" class="edge"/>'
        for place in range(3)
    )
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'role="img" aria-labelledby="title about">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="about">{escape(about)}</desc>',
        "<style>",
        f"text {{ font: {FONT_PX}px {FONTS}; fill: {theme['text']}; white-space: pre; }}",
        ".bold { font-weight: 700; }",
        *classes,
        "</style>",
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" '
        f'fill="{theme["ground"]}" stroke="{theme["edge"]}"/>',
        f'<path d="M1 {BAR_PX}V8.5a7.5 7.5 0 0 1 7.5-7.5h{width - 17}a7.5 7.5 0 0 1 7.5 7.5V{BAR_PX}z" '
        f'fill="{theme["bar"]}"/>',
        discs,
        *(_drawn(line, BAR_PX + MARGIN_PX + 4 + place * ROW_PX) for place, line in enumerate(lines)),
        "</svg>",
    ]
    return "\n".join(drawn) + "\n"


def _drawn(line: Line, y: int) -> str:
    return f'<text y="{y}" xml:space="preserve">{"".join(_pieces(line))}</text>'


def _pieces(line: Line) -> Iterator[str]:
    column = 0
    for text, classes in line:
        x, width = MARGIN_PX + column * CELL_PX, len(text) * CELL_PX
        named = f' class="{classes}"' if classes else ""
        yield f'<tspan x="{x:.1f}" textLength="{width:.1f}"{named}>{escape(text)}</tspan>'
        column += len(text)
