"""What rejects of one reason have in common: 229 of 231 under one prefix are one cause, not 229.

Pure and deterministic. Three things are compared: the beginnings of keys, the words of the details, and the
place in the source. A beginning that the accepted samples share as well says nothing, so whoever knows some
of their keys gives them as `accepted`; without them a name that all data has (`train_`) counts as a pattern.
Counting costs a few passes over the rejects, so a caller bounds how many it gives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 5
"""Fewer rejects than this have no pattern, only coincidences."""
SHARE = 0.9
"""Of the rejects that a pattern covers at least."""
UNUSUAL = 0.5
"""A beginning counts only if its share among the accepted is less than this times that among the rejects."""
DENSE = 0.8
"""Of the rows from the first to the last that are rejects, where they count as one stretch."""
_ROW = re.compile(r"(?P<file>.+):(?P<row>\d+)\Z")
_PADDING = re.compile(r"(?:\A|(?<=[/_-]))0+\Z")
"""Zeros before a number, which all numbers of a length share."""
_SEPARATORS = "/_-. "


@dataclass(frozen=True)
class Pattern:
    """What `count` of the rejects share; `text` says it, such as `229 of 231 under train_40*`."""

    text: str
    count: int


def patterns(rejects: Sequence[tuple[str, str, str]], accepted: Sequence[str] = ()) -> list[Pattern]:
    """What most of these (key, detail, source) of one reason share, the widest first; often nothing.

    `accepted` are keys of samples that were taken, some hundreds spread over the dataset.
    """
    if len(rejects) < LEAST:
        return []
    found = [
        _beginning([key for key, _, _ in rejects], accepted),
        _same_detail([detail for _, detail, _ in rejects]),
        _same_place([source for _, _, source in rejects]),
    ]
    shared = [pattern for pattern in found if pattern is not None]
    return sorted(shared, key=lambda pattern: -pattern.count)


def _beginning(keys: Sequence[str], accepted: Sequence[str]) -> Pattern | None:
    """The longest beginning of at least SHARE of the keys."""
    under = list(keys)
    prefix = ""
    while True:
        position = len(prefix)
        following = Counter(key[position] for key in under if len(key) > position)
        if not following:
            break
        letter, count = min(following.items(), key=lambda pair: (-pair[1], pair[0]))
        if count < SHARE * len(keys):
            break
        prefix += letter
        under = [key for key in under if key.startswith(prefix)]
    prefix = _PADDING.sub("", prefix)
    if not prefix.strip(_SEPARATORS):
        return None
    under = [key for key in keys if key.startswith(prefix)]
    as_usual = sum(key.startswith(prefix) for key in accepted)
    if accepted and as_usual / len(accepted) >= UNUSUAL * len(under) / len(keys):
        return None
    folder = prefix[:-1] if prefix.endswith("/") else prefix + "*"
    return _pattern(len(under), len(keys), f"under {folder}")


def _same_detail(details: Sequence[str]) -> Pattern | None:
    """The same words; only if they could have been others (some are, or they state a figure)."""
    counts = Counter(details)
    detail, count = min(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    could_differ = len(counts) > 1 or any(letter.isdigit() for letter in detail)
    if not detail or not could_differ or count < SHARE * len(details):
        return None
    return _pattern(count, len(details), f"say {detail!r}")


def _same_place(sources: Sequence[str]) -> Pattern | None:
    """One file of several, or one stretch of a file's rows."""
    places = [_place(source) for source in sources]
    files = Counter(file for file, _ in places)
    file, count = min(files.items(), key=lambda pair: (-pair[1], pair[0]))
    if not file or count < SHARE * len(sources):
        return None
    rows = sorted({row for name, row in places if name == file and row is not None})
    if len(rows) >= LEAST and len(rows) >= DENSE * (rows[-1] - rows[0] + 1):
        return _pattern(count, len(sources), f"in rows {rows[0]:,} to {rows[-1]:,} of {file}")
    return _pattern(count, len(sources), f"in {file}") if len(files) > 1 else None


def _place(source: str) -> tuple[str, int | None]:
    """`captions.csv:17` -> (`captions.csv`, 17)."""
    match = _ROW.match(source)
    return (match["file"], int(match["row"][:18])) if match else (source, None)


def _pattern(count: int, total: int, what: str) -> Pattern:
    return Pattern(f"{f'all {total:,}' if count == total else f'{count:,} of {total:,}'} {what}", count)
