"""Why raw samples were rejected: the reasons, and the rejects of a version grouped by their causes.

A reject is counted and recorded by reason; it never stops a build. Nobody reads thousands of them, so a
report shows what many have in common: a detail that differs only in names and figures, the beginning of the
key, the place in the source. At most COMPARED rejects per reason are compared, which bounds time and memory.
Rejects of private data are counted and nothing more.

Every check of a sample imports this module, so pyarrow is imported only where a table is read.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

from tasks.core.errors import DataError
from tasks.core.stores import address_key
from tasks.core.units import shorten
from tasks.dataset.version.layout import REJECTS

Reason = Literal[
    "source.unreadable", "source.unreachable", "source.gone", "member.missing", "key.duplicate",
    "archive.bomb", "archive.unsafe",
    "image.undecodable", "image.empty", "image.not_an_image", "image.too_large", "image.too_small",
    "caption.missing", "caption.empty", "caption.encoding", "report.missing", "labels.missing",
    "volume.undecodable", "volume.pickle", "volume.shape", "volume.dtype", "volume.nonfinite",
    "volume.hu_range", "volume.spacing",
    "reinforcement.crop", "reinforcement.rows", "reinforcement.members",
    "chat.turns", "chat.images", "chat.ratings",
]  # fmt: skip

FILTERED, BY_SCORE = "filtered", "score"
"""The reason of a sample that a rule leaves out in conversion, which is no reject; and the detail where that
is a rule on a model's score."""

TRANSIENT: Reason = "source.unreadable"
"""The reason of a file that this machine could not read: a disk, permissions, too many open files."""
PASSING: frozenset[str] = frozenset({TRANSIENT, "source.unreachable"})
"""The reasons that may have passed at the next try: such a reject is not kept, so the next build reads the
sample again."""
LINK_ROT: frozenset[str] = frozenset({"source.unreachable", "source.gone"})
"""The reasons of addresses that give no file, as 20 to 40 % of an old table's do."""

MEANINGS: Mapping[str, str] = {
    "source.unreadable": "the file could not be read",
    "source.unreachable": "the image's server did not answer properly; the next build asks it again",
    "source.gone": "the image's server no longer has it, or forbids its use",
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
    "labels.missing": "a label is missing (labels: {missing: skip} accepts that), or is no number",
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
"""How many rejects per reason are compared."""
LEAST = 5
"""With fewer rejects than this, what they have in common may be a coincidence."""
SHARE = 0.9
"""The share of the rejects that a common trait must cover."""
UNUSUAL = 0.5
"""A beginning counts only if its share among accepted keys is less than this times that among the rejects."""
DENSE = 0.8
"""Rejects count as one stretch if this share of the rows from the first to the last are rejects."""
SHOWN = 5
"""How many causes per reason, and examples per cause, are shown."""
ACCEPTED = 1000
"""How many keys of accepted samples the rejects' keys are compared with."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NAME = re.compile(
    r"""
    (?<!\w)b?(?:'(?:\\.|[^'\\])*(?:'|\Z) | "(?:\\.|[^"\\])*(?:"|\Z))  # what is quoted, also if cut short
    | [^\s,;()]*[/\\@^][^\s,;()]*    # a path, an address
    | \w[^\s,;:()]*\.[A-Za-z]\w*     # the name of a file
    """,
    re.VERBOSE,
)
_ADDRESS = re.compile(r"\b(?:https?|s3|gs)://[^\s\"']+")
_PADDING = re.compile(r"(?:\A|(?<=[/_-]))0+\Z")
"""Leading zeros, which all numbers of the same length share."""
_SEPARATORS = "/_-. "
_ROW = re.compile(r"(?P<file>.+):(?P<row>\d{1,18})\Z")


class Reject(Exception):
    """One raw sample cannot be accepted.

    `detail` is for a person and must be the same wherever and whenever the sample is read: no addresses in
    memory, no absolute paths, no line numbers. Values from the data are quoted in it, as `repr` does.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


class RejectRow(NamedTuple):
    """The columns of `rejects.parquet` that describe one reject, in their order."""

    original_key: str
    detail: str
    source: str


@dataclass(frozen=True)
class RejectCause:
    """Rejects of one reason whose details differ only in names and figures; `detail` is that of the first."""

    count: int
    detail: str
    examples: Sequence[RejectRow]


@dataclass(frozen=True)
class RejectGroup:
    """The rejects of one reason; `compared` of them were grouped by cause, and the largest cause comes
    first."""

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
        """The group on one line of a terminal: an example of the largest cause, and what most rejects
        share."""
        line = f"{self.count:>7,} {self.reason:<22}"
        notes = list(self.traits[:1])
        if self.causes:
            first = self.causes[0]
            place = first.examples[0].source or first.examples[0].original_key
            line += f" {place}: {first.detail}" if place else f" {first.detail}"
            if first.count < self.compared:
                notes.insert(0, f"{first.count:,} of {self.compared:,} alike")
        return (line + (f"   ← {'; '.join(notes)}" if notes else "")).rstrip()


def printable(text: str) -> str:
    """The text as tables and pages may hold it: what is not valid Unicode (bytes that were not UTF-8) becomes
    escapes, and addresses lose their passwords and signatures."""
    if "://" in text:
        text = _ADDRESS.sub(lambda found: address_key(found[0]), text)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def count_groups(counts: Mapping[str, int]) -> list[RejectGroup]:
    """One group per reason with its count alone, the largest first."""
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [RejectGroup(reason, count) for reason, count in ordered if count]


def read_groups(
    folder: Path, counts: Mapping[str, int], is_private: bool, usual: Sequence[str] = ()
) -> list[RejectGroup]:
    """The groups with causes and traits from the `rejects.parquet` in a folder; of private data the counts
    alone. `usual` are keys to compare with where no version holds any. DataError when the table cannot be
    read."""
    groups = count_groups(counts)
    if is_private or not groups:
        return groups
    rows = _read_rows(folder, groups)
    accepted = _accepted_keys(folder) or usual
    return [
        replace(
            group,
            compared=len(rows[group.reason]),
            causes=causes_of(rows[group.reason])[:SHOWN],
            traits=[shorten(trait, 200) for trait in traits_of(rows[group.reason], accepted)],
        )
        for group in groups
    ]


def reject_lines(
    folder: Path, counts: Mapping[str, int], is_private: bool, usual: Sequence[str] = ()
) -> list[str]:
    """One line per reason, as `read_groups` finds them; the counts alone where the table is damaged."""
    try:
        groups = read_groups(folder, counts, is_private, usual)
    except DataError:
        groups = count_groups(counts)  # verify reports the damage
    return [group.line() for group in groups]


def causes_of(rows: Sequence[RejectRow]) -> list[RejectCause]:
    """The rejects of one reason, grouped by their details without names and figures; the largest group
    first."""
    alike: dict[str, list[RejectRow]] = defaultdict(list)
    for row in rows:
        alike[_NUMBER.sub("#", _NAME.sub("…", row.detail))].append(row)
    ordered = sorted(alike.values(), key=len, reverse=True)
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


def traits_of(rows: Sequence[RejectRow], accepted: Sequence[str] = ()) -> list[str]:
    """The traits that nearly all of these rejects of one reason share, the most common first; often none.

    `accepted` are the keys of some hundreds of accepted samples, spread over the dataset: without them, a
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
    """The longest beginning that at least SHARE of the keys have: in order, equal beginnings are
    neighbours."""
    ordered = sorted(keys)
    ends = ordered[math.ceil(SHARE * len(keys)) - 1 :]
    prefix = max(map(os.path.commonprefix, zip(ordered, ends, strict=False)), key=len)
    prefix = _PADDING.sub("", prefix)
    count, usual = (sum(key.startswith(prefix) for key in some) for some in (keys, accepted))
    if not prefix.strip(_SEPARATORS) or (accepted and usual / len(accepted) >= UNUSUAL * count / len(keys)):
        return None
    return count, f"under {prefix[:-1] if prefix.endswith('/') else prefix + '*'}"


def _place(sources: Sequence[str]) -> tuple[int, str] | None:
    """The one file of several, or the one stretch of a file's rows, that nearly all come from:
    `captions.csv:17` is row 17."""
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


def _read_rows(folder: Path, groups: Sequence[RejectGroup]) -> dict[str, list[RejectRow]]:
    """The first COMPARED rejects of each reason."""
    import pyarrow.compute as pc

    from tasks.dataset.version.tables import read_pieces

    found: dict[str, list[RejectRow]] = {group.reason: [] for group in groups}
    for piece in read_pieces(folder / REJECTS, ["reason", *RejectRow._fields]):
        for reason, rows in found.items():
            same = piece.filter(pc.field("reason") == reason).slice(0, COMPARED - len(rows))
            cells = same.select(RejectRow._fields).to_pylist()
            rows += [RejectRow(**{name: cell or "" for name, cell in row.items()}) for row in cells]
    return found


def _accepted_keys(version: Path) -> list[str]:
    """The original keys of some samples of each split; none where a build failed or a table is damaged."""
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
