"""A page of commands with what they print, and the comparison with what they print now.

A block of ```console holds commands after `$ ` and their output; a block of ```python whose first line is
`# NAME.py` is a file that the reader saves. The output has to come as the page has it, word by word and line by
line, with three exceptions: a line `…` stands for one line or more that the page leaves out, `RULES` lists the
values that differ from machine to machine, and lines of progress, which a terminal shows as one bar, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

TOLERANCE = 0.05
"""How far scores and losses may lie apart: processors round differently, and a training multiplies it."""
SHORTENED = "…"
PROGRESS = re.compile(
    r"  starting Prefect…$"
    r"|  build     [\d,]+/[\d,]+ samples\b"
    r"|  tune      measuring loader settings\b"
    r"|  train     [\d,]+/[\d,]+ steps\b"
    r"|  evaluate  [\d,]+/[\d,]+ evaluations$"
)
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\S+\.py)\n")


@dataclass(frozen=True)
class Rule:
    """A value that may differ: where it stands, and what of it has to agree nevertheless.

    `free` values differ as they like, `close` ones by TOLERANCE, and a `name` stands for the same thing each time: what
    the page calls one way has to be called one way, and no other thing so.
    """

    name: str
    pattern: str
    """It matches the value alone; what has to stand around it is looked at and not matched."""
    agrees: Literal["free", "close", "name"] = "free"


RATES = r"\d+ workers?: [\d,]+(?:, which it would wait for)?"
RULES = (
    # Which settings are quickest, and so what is said of the others, is decided by the machine.
    Rule(
        "tuning",
        r"(?<=^✓ tune      )\d+ workers?: [\d,]+ samples/s, (?:not )?enough for the [\d,.]+ that the training takes"
        rf"(?:, of which it reaches \d+ %)?(?: \({RATES}(?:, {RATES})*\))?(?= )",
    ),
    Rule("wandb run", r"(?<=[0-9a-f]{12}-)[0-9a-f]{8}\b", "name"),
    Rule(
        "id",
        r"(?<![\w.-])[0-9a-f]{12}\b|(?<=runs/digits-)[0-9a-f]{12}\b|(?<=gather digits-)[0-9a-f]{12}\b",
        "name",
    ),
    # With the spaces before it, for what ends a line is aligned on the right.
    Rule("time", r" +\d[\d,]*(?:\.\d+)? (?:ms|s|min)\b"),
    Rule("processors", r"(?<= with )\d+ workers?$"),
    Rule("free space", r"(?<= of )\d+(?:\.\d+)? [MGT]B(?= free on the disk of )"),
    Rule("bytes read", r"(?<=^  workers     \+)\d+(?:\.\d+)? [kMG]B(?= read, )"),
    Rule("waiting", r"(?<=, waiting for data )<?\d+(?:\.\d+)? %"),
    Rule("goodput", r"(?<=^  goodput )\d+%"),
    Rule("process", r"(?<=^  main )\d+ +"),
    # What the doctor happened to see being read.
    Rule(
        "shard",
        r"(?<= and yield nothing, )\d{6}\.tar(?= from its start)|(?<=^  data        )\d{6}\.tar(?=: )",
    ),
    # The shards are drawn at random by the page's own trainer.
    Rule("brightness", r"(?<= brightness )\d+\.\d$"),
    Rule("loss", r"(?<=, loss )\d\.\d\d(?= → )|(?<=\d → )\d\.\d\d(?=, waiting )", "close"),
    Rule(
        "score",
        r"(?<=^Zero-shot accuracy )\d\.\d{3}(?= \()|(?<=\d \()\d\.\d{3}(?= to )|(?<= to )\d\.\d{3}(?= at 95 %)",
        "close",
    ),
)


@dataclass(frozen=True)
class TypedCommand:
    """A command of the page, and the lines that it shows as its output."""

    words: str
    output: Sequence[str]

    @property
    def code(self) -> int:
        """The exit code that the output announces: findings and verdicts end with 1."""
        return int(any(line.startswith(("✗", "VERDICT")) for line in self.output))


@dataclass(frozen=True)
class SavedFile:
    """A file that the reader saves before going on."""

    name: str
    content: str


def steps(page: str) -> Iterator[TypedCommand | SavedFile]:
    """What a reader does, from the top of the page to its end."""
    for kind, content in BLOCK.findall(page):
        if kind == "python":
            if named := FILE.match(content):
                yield SavedFile(named[1], content)
            continue
        for typed in re.split(r"^\$ ", content, flags=re.MULTILINE)[1:]:
            words, *output = typed.rstrip("\n").split("\n")
            yield TypedCommand(words, output)


@dataclass(frozen=True)
class Line:
    """A line with the names of rules in the place of their values."""

    words: str
    values: Mapping[str, Sequence[str]]

    @classmethod
    def of(cls, text: str) -> Line:
        words, values = re.sub(r"[\u00a0\u202f]", " ", text).rstrip(), {}
        for rule in RULES:
            values[rule.name] = re.findall(rule.pattern, words)
            words = re.sub(rule.pattern, f"‹{rule.name}›", words)
        return cls(words, values)


@dataclass
class Comparison:
    """Compares the outputs of a page's commands one after the other, as names have to agree over all of them."""

    _printed: dict[str, str] = field(default_factory=dict)
    """What is printed by what the page has, of names."""

    def difference(self, expected: Sequence[str], output: str) -> str | None:
        """The first line that is not as the page has it, with what came in its place; None where all are."""
        wanted = _without_blank_ends(expected)
        found = _without_blank_ends(line for line in output.splitlines() if not PROGRESS.match(line))
        position = 0
        may_skip = False
        for text in wanted:
            if text == SHORTENED:
                may_skip, position = True, position + 1
                continue
            here = position
            while may_skip and here < len(found) and not self._is_same(text, found[here]):
                here += 1
            if here >= len(found) or not self._is_same(text, found[here]):
                shown = found[position] if position < len(found) else "nothing more"
                return f"the page has\n  {text}\nand it printed\n  {shown}"
            self._printed |= dict(self._names(text, found[here]))
            position, may_skip = here + 1, False
        if position > len(found):
            return "the page leaves lines out at its end, and there are none"
        if position < len(found) and not may_skip:
            return f"the page does not have\n  {found[position]}"
        return None

    def _is_same(self, expected: str, printed: str) -> bool:
        one, other = Line.of(expected), Line.of(printed)
        if one.words != other.words:
            return False
        close = (
            abs(float(page) - float(now)) <= TOLERANCE
            for rule in RULES
            if rule.agrees == "close"
            for page, now in zip(one.values[rule.name], other.values[rule.name], strict=True)
        )
        return all(close) and self._agree(self._names(expected, printed))

    def _names(self, expected: str, printed: str) -> Iterator[tuple[str, str]]:
        one, other = Line.of(expected), Line.of(printed)
        for rule in RULES:
            if rule.agrees == "name":
                yield from zip(one.values[rule.name], other.values[rule.name], strict=True)

    def _agree(self, names: Iterable[tuple[str, str]]) -> bool:
        known = dict(self._printed)
        for page, now in names:
            if known.setdefault(page, now) != now:
                return False
        return len(set(known.values())) == len(known)


def _without_blank_ends(lines: Iterable[str]) -> list[str]:
    text = "\n".join(lines).strip("\n")
    return text.split("\n") if text else []
