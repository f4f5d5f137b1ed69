"""Draws docs/architecture.svg from the contract of import-linter that keeps arrows one way.

`python -m tests.architecture` writes it; `tests/test_architecture.py` fails when the picture or a module's name in
the pages for developers is no longer true.
"""

from __future__ import annotations

import importlib
import textwrap
import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/architecture.svg"
WIDTH, MARGIN, GAP, LINE = 980, 24, 10, 15
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1b1b}.name{font-weight:600}"
    "rect{fill:#f4f6f8;stroke:#8a97a5}path{stroke:#8a97a5;fill:none}"
)


def layers() -> list[list[str]]:
    """The layers from the top down, each with its modules; a module imports from layers below its own only."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [found] = [one["layers"] for one in contracts if one["name"] == "Arrows go one way"]
    return [[name.strip() for name in layer.split("|")] for layer in found]


def purpose(name: str) -> str:
    """The first sentence of a module's docstring, without its full stop."""
    text = " ".join((importlib.import_module(name).__doc__ or "").split("\n\n")[0].split())
    return text.split(". ")[0].removesuffix(".")


def picture() -> str:
    """The layers as rows of boxes, one above the other."""
    parts, y = [], MARGIN
    for modules in layers():
        width = (WIDTH - 2 * MARGIN - GAP * (len(modules) - 1)) / len(modules)
        texts = [textwrap.wrap(purpose(name), int(width / 7.2)) for name in modules]
        height = 2 * LINE + LINE * max(map(len, texts))
        for number, (name, lines) in enumerate(zip(modules, texts, strict=True)):
            x = MARGIN + number * (width + GAP)
            parts.append(f'<rect x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}" rx="4"/>')
            for row, line in enumerate([name, *lines]):
                kind = ' class="name"' if row == 0 else ""
                parts.append(
                    f'<text{kind} x="{x + 8:.0f}" y="{y + (row + 1.3) * LINE:.0f}">{escape(line)}</text>'
                )
        y += height + GAP
    arrow = f'<path d="M{MARGIN / 2} {MARGIN}V{y - GAP}m-4 -8l4 8l4 -8"/>'
    size = f'viewBox="0 0 {WIDTH} {y - GAP + MARGIN}" width="{WIDTH}"'
    title = "<title>A module imports from the rows below its own only</title>"
    body = "\n".join([title, f"<style>{STYLE}</style>", arrow, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>\n{body}\n</svg>\n'


if __name__ == "__main__":
    PICTURE.write_text(picture())
