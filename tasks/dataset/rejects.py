"""Why raw samples could not be taken: the reasons, and the rejects of a version grouped by their causes.

A reject is counted and recorded by reason; it never stops a build. Nobody reads thousands of them, so what is
shown is what many have in common: a detail that is the same but for names and figures, the beginning of the
key, the place in the source. At most COMPARED rejects per reason are compared, which bounds time and memory.

Every check of a sample imports this module, so pyarrow is imported only where a table is read.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from tasks.core.errors import DataError
from tasks.core.stores import address_key
from tasks.core.units import shorten
from tasks.dataset.layout import REJECTS

Reason = Literal[
    "source.unreadable",
    "member.missing",
    "key.duplicate",
    "image.undecodable",
    "image.empty",
    "image.not_an_image",
    "image.too_large",
    "image.too_small",
    "caption.missing",
    "caption.empty",
    "caption.encoding",
    "volume.undecodable",
    "volume.pickle",
    "volume.shape",
    "volume.dtype",
    "volume.nonfinite",
    "volume.hu_range",
    "volume.spacing",
    "report.missing",
    "labels.missing",
    "reinforcement.crop",
    "reinforcement.rows",
    "reinforcement.members",
    "chat.turns",
    "chat.images",
    "chat.ratings",
    "archive.bomb",
    "archive.unsafe",
]

TRANSIENT: Reason = "source.unreadable"
"""The reason that may be gone at the next try (a disk, rights, too many open files): it is not kept, so the
next build reads the sample again."""

MEANINGS: Mapping[str, str] = {
    "source.unreadable": "the file could not be read",
    "member.missing": "a part of the sample is missing, such as its image file",
    "key.duplicate": "another sample has the same key",
    "image.undecodable": "the image is damaged",
    "image.empty": "the image file has no bytes",
    "image.not_an_image": "the file is no image, whatever its name says",
    "image.too_large": "the image has more pixels than dataset.image.max_pixels",
    "image.too_small": "a side is shorter than dataset.image.min_side",
    "caption.missing": "there is no caption",
    "caption.empty": "the caption has no characters",
    "caption.encoding": "the caption is not UTF-8",
    "volume.undecodable": "the volume is damaged",
    "volume.pickle": "the file holds Python objects, which are never loaded",
    "volume.shape": "the volume does not have three dimensions",
    "volume.dtype": "the volume's numbers are of a type that cannot be taken",
    "volume.nonfinite": "the volume holds values that are not finite",
    "volume.hu_range": "the values cannot be Hounsfield units",
    "volume.spacing": "the distance between slices cannot be right",
    "report.missing": "there is no report",
    "labels.missing": "a label is missing, or is no number",
    "reinforcement.crop": "a crop lies outside the image",
    "reinforcement.rows": "there are not as many embeddings as augmentations or captions",
    "reinforcement.members": "a part of the reinforcement is missing or cannot be read",
    "chat.turns": "the turns do not alternate, or one is empty",
    "chat.images": "there are not as many images as places for them",
    "chat.ratings": "a rating is not within its range",
    "archive.bomb": "the archive unpacks to more than is allowed",
    "archive.unsafe": "the archive holds paths or links that could escape",
}
"""What each reason means, in words for a page."""

COMPARED = 5000
"""Rejects of a reason among which common traits are sought."""
LEAST = 5
"""Fewer rejects than this have nothing in common but by coincidence; of private data, their detail might be
about one person."""
SHARE = 0.9
"""Of the rejects that a trait covers at least, to be called one."""
UNUSUAL = 0.5
"""A beginning counts only if its share among accepted keys is less than this times that among the rejects."""
DENSE = 0.8
"""Of the rows from the first to the last that are rejects, where they count as one stretch."""
SHOWN = 5
"""Causes of a reason, and examples of a cause."""
ACCEPTED = 1000
"""Keys of other samples that the rejects' keys are compared with."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NAME = re.compile(
    r"""
    (?<!\w)b?(?:'(?:\\.|[^'\\])*(?:'|\Z) | "(?:\\.|[^"\\])*(?:"|\Z))  # what is quoted, also if cut short
    | [^\s,;()]*[/\\@^][^\s,;()]*    # a path, an address
    | \w[^\s,;:()]*\.[A-Za-z]\w*     # the name of a file
    """,
    re.VERBOSE,
)
_WORD = re.compile(r"[^\W\d_]+|\d+")
_OWN_WORDS = frozenset(_WORD.findall(" ".join([*MEANINGS, *MEANINGS.values()]).lower()))
"""Words of the program, which name nobody although a key may hold them too."""
_TOKEN = re.compile(r"[\w-]+")
_ADDRESS = re.compile(r"\b(?:https?|s3|gs)://[^\s\"']+")
_PADDING = re.compile(r"(?:\A|(?<=[/_-]))0+\Z")
"""Zeros before a number, which all numbers of a length share."""
_SEPARATORS = "/_-. "
_ROW = re.compile(r"(?P<file>.+):(?P<row>\d{1,18})\Z")


class Reject(Exception):
    """One raw sample cannot be taken.

    `detail` is for a person and must be the same wherever and whenever the sample is read: no addresses, no
    absolute paths, no line numbers. Values out of the data are quoted in it, as `repr` does.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


class RejectRow(NamedTuple):
    """What `rejects.parquet` says of one reject, in that order of columns."""

    original_key: str
    detail: str
    source: str


@dataclass(frozen=True)
class RejectCause:
    """Rejects of one reason whose details differ in names and figures only.

    `detail` is that of the first; of private data it names nobody, or is empty, and there are no examples.
    """

    count: int
    detail: str
    examples: Sequence[RejectRow] = ()


@dataclass(frozen=True)
class RejectGroup:
    """The rejects of one reason, of which `compared` were grouped by cause, the largest first."""

    reason: str
    count: int
    compared: int = 0
    causes: Sequence[RejectCause] = ()
    traits: Sequence[str] = ()
    """What nearly all have in common, such as `229 of 231 under train_40*`."""

    @property
    def meaning(self) -> str:
        return MEANINGS.get(self.reason, "")

    def line(self) -> str:
        """The group on one line of a terminal: an example of the largest cause, and what many share."""
        line = f"{self.count:>7,} {self.reason:<22}"
        notes = [f"{trait}: one cause?" for trait in self.traits[:1]]
        if self.causes:
            first = self.causes[0]
            place = first.examples[0].source or first.examples[0].original_key if first.examples else ""
            line += f" {place}: {first.detail}" if place else f" {first.detail}"
            if first.count < self.compared:
                notes.insert(0, f"{first.count:,} of {self.compared:,} alike")
        return (line + (f"   ← {'; '.join(notes)}" if notes else "")).rstrip()


def printable(text: str) -> str:
    """The text as tables and pages may hold it: what is not valid Unicode (bytes that were not UTF-8) written
    out as escapes, addresses without what lets one read them."""
    if "://" in text:
        text = _ADDRESS.sub(lambda found: address_key(found[0]), text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def count_groups(counts: Mapping[str, int]) -> list[RejectGroup]:
    """The counts alone, the largest first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [RejectGroup(reason, count) for reason, count in ordered if count]


def read_groups(
    folder: Path, counts: Mapping[str, int], is_private: bool, usual: Sequence[str] = ()
) -> list[RejectGroup]:
    """The groups with causes and traits from the `rejects.parquet` in a folder; of private data only details
    that name nobody. `usual` are keys to compare with where no version holds any. DataError when the table
    cannot be read."""
    rows = _read_rows(folder, counts)
    accepted = [] if is_private or not rows else _accepted_keys(folder) or usual
    groups = []
    for group in count_groups(counts):
        mine = rows.get(group.reason, [])
        traits = [] if is_private else [shorten(trait, 200) for trait in traits_of(mine, accepted)]
        causes = causes_of(mine, is_private)[:SHOWN]
        groups.append(RejectGroup(group.reason, group.count, len(mine), causes, traits))
    return groups


def reject_lines(
    folder: Path, counts: Mapping[str, int], is_private: bool, usual: Sequence[str] = ()
) -> list[str]:
    """One line per reason, as `read_groups` finds them; the counts alone where the table is damaged."""
    try:
        groups = read_groups(folder, counts, is_private, usual)
    except DataError:
        groups = count_groups(counts)  # verify is who reports the damage
    return [group.line() for group in groups]


def causes_of(rows: Sequence[RejectRow], is_private: bool = False) -> list[RejectCause]:
    """The rejects of one reason grouped by their details without names and figures; the largest first."""
    alike: dict[str, list[RejectRow]] = defaultdict(list)
    for row in rows:
        alike[_NUMBER.sub("#", _NAME.sub("…", row.detail))].append(row)
    ordered = sorted(alike.values(), key=len, reverse=True)
    if is_private:
        found = [RejectCause(len(same), _private_detail(same)) for same in ordered]
        return [cause for cause in found if cause.detail]
    return [
        RejectCause(
            len(same),
            shorten(same[0].detail),
            [
                RejectRow(shorten(row.original_key, 80), shorten(row.detail), shorten(row.source, 80))
                for row in same[:SHOWN]
            ],
        )
        for same in ordered
    ]


def _private_detail(rows: Sequence[RejectRow]) -> str:
    """What at least LEAST samples have word for word in common once all that could be a name is left out, or
    nothing. That is what is quoted, a path, a file's name, an address, a long number, a word beyond ASCII or
    one of the sample's own key or place: what stays are words of the program and the config.
    """
    details = [_anonymous(row) for row in rows]
    if len(set(details)) > 1:
        details = [_NUMBER.sub("#", detail) for detail in details]
    text, count = Counter(details).most_common(1)[0]
    return shorten(text) if count >= LEAST and _WORD.search(text) else ""


def _anonymous(row: RejectRow) -> str:
    place = f"{row.original_key} {row.source}".lower()
    words = set(_WORD.findall(place))

    def is_name(word: str) -> bool:
        if word.isdigit():
            return len(word) > 4 or (len(word) > 2 and word in words)
        word = word.lower()
        is_theirs = not word.isascii() or word in words or (len(word) > 3 and word in place)
        return is_theirs and word not in _OWN_WORDS

    def masked(token: re.Match[str]) -> str:
        return "…" if any(map(is_name, _WORD.findall(token[0]))) else token[0]

    return re.sub(r"…[\s…]*…", "…", _TOKEN.sub(masked, _NAME.sub("…", row.detail)))


def traits_of(rows: Sequence[RejectRow], accepted: Sequence[str] = ()) -> list[str]:
    """What nearly all of these rejects of one reason share, the widest first; often nothing.

    `accepted` are keys of samples that were taken, some hundreds spread over the dataset: without them, a
    beginning that all data has (`train_`) counts as a trait too.
    """
    if len(rows) < LEAST:
        return []
    found = (_beginning([row.original_key for row in rows], accepted), _place([row.source for row in rows]))
    shared = sorted(filter(None, found), key=lambda trait: -trait[0])
    return [
        f"{f'{count:,} of' if count < len(rows) else 'all'} {len(rows):,} {text}" for count, text in shared
    ]


def _beginning(keys: Sequence[str], accepted: Sequence[str]) -> tuple[int, str] | None:
    """The longest beginning of at least SHARE of the keys: equal beginnings are neighbours in order."""
    ordered = sorted(keys)
    ends = ordered[math.ceil(SHARE * len(keys)) - 1 :]
    prefix = max(map(os.path.commonprefix, zip(ordered, ends, strict=False)), key=len)
    prefix = _PADDING.sub("", prefix)
    count, usual = (sum(key.startswith(prefix) for key in some) for some in (keys, accepted))
    if not prefix.strip(_SEPARATORS) or (accepted and usual / len(accepted) >= UNUSUAL * count / len(keys)):
        return None
    return count, f"under {prefix[:-1] if prefix.endswith('/') else prefix + '*'}"


def _place(sources: Sequence[str]) -> tuple[int, str] | None:
    """One file of several, or one stretch of a file's rows: `captions.csv:17` is row 17."""
    places = [
        (found["file"], int(found["row"])) if (found := _ROW.match(one)) else (one, None) for one in sources
    ]
    files = Counter(file for file, _ in places)
    file, count = min(files.items(), key=lambda pair: (-pair[1], pair[0]))
    if not file or count < SHARE * len(sources):
        return None
    rows = sorted({row for name, row in places if name == file and row is not None})
    if len(rows) >= LEAST and len(rows) >= DENSE * (rows[-1] - rows[0] + 1):
        return count, f"in rows {rows[0]:,} to {rows[-1]:,} of {file}"
    return (count, f"in {file}") if len(files) > 1 else None


def _read_rows(folder: Path, counts: Mapping[str, int]) -> dict[str, list[RejectRow]]:
    """The first COMPARED rejects of each reason."""
    import pyarrow.compute as pc

    from tasks.dataset.tables import read_pieces

    found: dict[str, list[RejectRow]] = {reason: [] for reason, count in counts.items() if count}
    for piece in read_pieces(folder / REJECTS, ["reason", *RejectRow._fields]):
        for reason, rows in found.items():
            same = piece.filter(pc.field("reason") == reason).slice(0, COMPARED - len(rows))
            cells = same.select(RejectRow._fields).to_pylist()
            rows += [RejectRow(**{name: cell or "" for name, cell in row.items()}) for row in cells]
    return found


def _accepted_keys(version: Path) -> list[str]:
    """Original keys of some samples of each split; none where a build failed or a table is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys: list[str | None] = []
    tables = sorted((version / "samples").glob("*.parquet"))
    for path in tables:
        try:
            with pq.ParquetFile(path) as file:
                for group in {0, file.num_row_groups // 2} if file.num_row_groups else ():
                    column = file.read_row_group(group, ["original_key"]).column(0)
                    keys += column[:: 1 + len(column) * len(tables) // ACCEPTED].to_pylist()
        except (OSError, ValueError, pa.ArrowException):
            continue
    return [key for key in keys if key is not None]
