"""What patterns mean, as text: braces are choices, `*`, `?` and `[..]` match within a name, `**` any depth.

Nothing here looks at a file; `tasks.core.stores` does, with what these functions tell.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from functools import lru_cache

from tasks.core.addresses import host_of, is_remote, is_web
from tasks.core.errors import UsageError

MOST_FILES = 10_000_000
"""That braces may stand for."""
_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([^{}]*,[^{}]*)\}")
_MARK, _WEB_MARK = re.compile(r"[*?[]"), re.compile(r"[*[]")
_MARKS = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\])")
_MEANINGS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def is_hidden(file: str) -> bool:
    """Whether the file, or a folder on the way to it, is none of the data: `.git/x`, `__MACOSX/._a.jpg`."""
    if "." not in file and "_" not in file:
        return False
    return any(part.startswith(".") or part == "__MACOSX" for part in file.split("/"))


def first_mark(location: str) -> int | None:
    """Where the pattern in a location begins; None when there is none."""
    marks = [mark.start() for mark in (_BRACES.search(location), glob_in(location)) if mark]
    return min(marks, default=None)


def glob_in(location: str) -> re.Match[str] | None:
    """In an address of the web `?` begins the query."""
    marks = _WEB_MARK if is_web(location) else _MARK
    return marks.search(location, len(host_of(location)) if is_remote(location) else 0)


def choices(location: str, config_key: str) -> list[str]:
    """What the braces stand for, in their order."""
    texts, firsts, lasts, names = (_BRACES.split(location)[n::4] for n in range(4))
    ways = [_ways(*group, config_key) for group in zip(firsts, lasts, names, strict=True)]
    if math.prod(map(len, ways)) > MOST_FILES:
        raise UsageError(f"{config_key}: {location} stands for more than {MOST_FILES:,} files; give fewer")
    joined = []
    for chosen in itertools.product(*ways):
        joined.append("".join(itertools.chain(*zip(texts, chosen, strict=False), texts[-1:])))
    return joined


def _ways(first: str | None, last: str | None, names: str | None, config_key: str) -> Sequence[str]:
    if names is not None or first is None or last is None:
        return (names or "").split(",")
    numbers = range(int(first), int(last) + 1)
    if not numbers or len(numbers) > MOST_FILES:
        raise UsageError(f"{config_key}: {{{first}..{last}}} needs the smaller number first, and fewer files")
    width = len(first) if first.startswith("0") else 0
    return [f"{number:0{width}d}" for number in numbers]


def matches(name: str, pattern: str) -> bool:
    """As a shell does it: `*` leaves hidden names out."""
    return bool(expression(pattern).fullmatch(name)) and (pattern.startswith(".") or not is_hidden(name))


@lru_cache(maxsize=64)
def expression(pattern: str) -> re.Pattern[str]:
    """The pattern for whole paths: `a/**/[!b]*` matches `a/c1` and `a/x/y/c1`."""
    pieces = _MARKS.split(pattern)
    return re.compile("".join(map(_meaning, pieces)), re.DOTALL)


def _meaning(piece: str) -> str:
    if piece in _MEANINGS:
        return _MEANINGS[piece]
    if not _MARKS.fullmatch(piece):
        return re.escape(piece)
    is_negated = piece[1] == "!"
    inside = re.sub(r"([\\\[\]^&~|])", r"\\\1", piece[1 + is_negated : -1])
    try:
        return re.compile(f"(?!/)[{'^' if is_negated else ''}{inside}]").pattern
    except re.error:  # a range that ends before it begins
        return "(?!)" if not is_negated else "[^/]"
