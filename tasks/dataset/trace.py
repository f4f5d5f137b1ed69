"""Traces a sample: from its key, its name in the source or its place there to all that a version knows of it.

Whoever sees a wrong prediction asks which raw file it was, and whoever changes a raw file asks what became of
it. Tables are streamed once to find a name and once more to find copies, so memory does not grow with the
dataset. Of private data nothing but what is asked for is gathered: no text, no group, no other key.
"""

from __future__ import annotations

import json
import math
import os.path
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.core.screen import Progress, no_progress
from tasks.core.units import shorten
from tasks.dataset.duplicates import LOOKS, NEEDED, Looks, like_first
from tasks.dataset.formats.checks import json_object
from tasks.dataset.keys import key_of
from tasks.dataset.quality.columns import SampleRow
from tasks.dataset.sample_reader import SampleReader
from tasks.dataset.version import quarantine
from tasks.dataset.version.index import read_index
from tasks.dataset.version.layout import INPUTS, REJECTS, samples_name
from tasks.dataset.version.manifest import Manifest
from tasks.dataset.version.rejects import Reject
from tasks.dataset.version.tables import (
    DAMAGED,
    ArrowBatches,
    read_origins,
    read_pieces,
    read_rows,
    unreadable,
)

MOST = 20
"""The most samples that a name is reported to fit, and copies that are named."""
MOST_KEYS = 10_000
"""Samples of one file that are looked up; a container may hold any number."""
NEAREST, CANDIDATES, LIKE = 3, 1000, 0.6
"""Names that are proposed for an unknown one, those that are compared in full, and how alike they must be."""
SHARED = (0.9, 0.7, 0.5, 0.3)
"""How much of its beginning or end a proposed name has in common with the unknown one."""
NAMES = ("key", "original_key", "source")
REJECTED = ("key", "original_key", "source", "file", "reason", "detail")
NOT_MEASURED = {*NAMES, "shard", "row", "group"}
CAPTION = 300


@dataclass(frozen=True)
class SampleCopy:
    """A sample that equals the traced one, or nearly."""

    split: str
    key: str
    source: str
    is_exact: bool


@dataclass(frozen=True)
class TracedReject:
    """A raw sample that could not be taken, by the columns of `rejects.parquet`."""

    key: str
    original_key: str
    source: str
    file: str
    reason: str
    detail: str


@dataclass(frozen=True)
class TracedSample:
    """What a version knows of a sample. `row` counts from 0 in its split, `offset` and `bytes` are those of
    all its members in the shard, `members` has their sizes. `problem` is why they cannot be read."""

    split: str
    row: int
    key: str
    original_key: str
    source: str
    group: str
    shard: str
    offset: int
    bytes: int
    members: Mapping[str, int]
    caption: str
    problem: str
    measured: Mapping[str, Any]
    quarantined: str
    copies: Sequence[SampleCopy]
    copies_by_split: Mapping[str, int]


@dataclass
class NameMatches:
    """The samples and rejects that a name fits: whole, or only as a beginning or the end of a path. `more`
    counts those beyond MOST."""

    samples: list[SampleRow] = field(default_factory=list)
    rejects: list[TracedReject] = field(default_factory=list)
    is_whole: bool = False
    more: int = 0

    @property
    def count(self) -> int:
        return len(self.samples) + len(self.rejects) + self.more


def find_name(version: Path, splits: Sequence[str], word: str) -> NameMatches:
    """Find what a key, a name in the source, a place in it or a file's path stands for. A path may begin
    above the source's folder. What fits whole counts; else what begins with the name, or ends with it as a
    path. DataError if a table cannot be read."""
    tails = _tails(word)
    whole = [hit for hit in _hits(version, splits, _whole(tails)) if hit[0]]
    if not whole:
        keys = list(islice(_keys_of_file(version, tails), MOST_KEYS))
        whole = list(_hits(version, splits, dict.fromkeys(keys, 1))) if keys else []
    if whole:
        longest = max(length for length, _ in whole)
        return _matches((found for length, found in whole if length == longest), is_whole=True)
    return _matches((found for _, found in _hits(version, splits, {}, word)), is_whole=False)


def nearest_names(version: Path, splits: Sequence[str], word: str) -> list[str]:
    """Return names of samples that are spelt like a word: the most similar of those that share a beginning or
    an end with it, the longer the better."""
    for share in SHARED:
        length = math.ceil(share * len(word))
        candidates: dict[str, None] = {}
        for split in splits:
            for piece in _pieces(version / samples_name(split), NAMES):
                for column in piece.columns:
                    ends = pc.starts_with(column, word[:length]), pc.ends_with(column, word[-length:])
                    if len(candidates) < CANDIDATES:
                        candidates |= dict.fromkeys(column.filter(pc.or_(*ends)).to_pylist())
        if close := get_close_matches(word, candidates, NEAREST, LIKE):
            return close
    return []


def trace_sample(
    version: Path, manifest: Manifest, place: SampleRow, is_private: bool, progress: Progress = no_progress
) -> TracedSample:
    """Gather what a version knows of one sample; DataError if its tables cannot be read."""
    split, row = place
    path = version / samples_name(split)
    facts = read_rows(path, [row], _columns(path)).get(row)
    if facts is None:
        raise DataError(f"{path}: has no row {row:,}; see `tarmac verify`")
    schema = pq.read_schema(path)
    measured = {
        name: value
        for name, value in facts.items()
        if name not in NOT_MEASURED
        and value is not None
        and not (pa.types.is_unsigned_integer(schema.field(name).type) or isinstance(value, bytes))
        and not (is_private and isinstance(value, str))
    }
    entry, reader = read_index(version, split)[row], SampleReader(version, split)
    members, caption, problem = _members(reader, row)
    copies, by_split = _copies(version, manifest, place, progress)
    return TracedSample(
        split,
        row,
        facts["key"],
        facts.get("original_key") or "",
        facts.get("source") or "",
        "" if is_private else facts.get("group") or "",
        reader.shard(row),
        int(entry["offset"]),
        int(entry["length"]),
        members,
        "" if is_private else shorten(caption, CAPTION),
        problem,
        measured,
        _quarantined(version, split, facts["key"]),
        () if is_private else copies,
        by_split,
    )


def _tails(word: str) -> list[str]:
    """Return a path and its ends, longest first: `a/b/c.jpg`, `b/c.jpg`, `c.jpg`."""
    parts = os.path.normpath(word).split("/") if "/" in word else [word]
    return [tail for place in range(len(parts)) if (tail := "/".join(parts[place:]))]


def _whole(tails: Sequence[str]) -> dict[str, int]:
    """Return by the names that a word may stand for how much of it each takes."""
    found = {key_of(tail): len(tail) for tail in reversed(tails)}
    return found | {tail: len(tail) for tail in reversed(tails)}


Hit = tuple[int, SampleRow | TracedReject]


def _hits(version: Path, splits: Sequence[str], whole: Mapping[str, int], word: str = "") -> Iterator[Hit]:
    """Yield what has one of the names, with how much that name takes, or else begins with a word or ends with
    it as a path."""
    wanted = pa.array(list(whole), pa.string())

    def rows(piece: Any) -> Iterator[tuple[int, int]]:
        fits = None
        for column in piece.columns:
            here = pc.is_in(column, wanted) if not word else _partly(column, word)
            here = here.fill_null(False)
            fits = here if fits is None else pc.or_(fits, here)
        for row in np.flatnonzero(np.asarray(fits)).tolist():
            names = [column[row].as_py() for column in piece.columns]
            yield row, max((whole[name] for name in names if name in whole), default=0)

    for split in splits:
        start = 0
        for piece in _pieces(version / samples_name(split), NAMES):
            for row, length in rows(piece):
                yield length, SampleRow(split, start + row)
            start += piece.num_rows
    for piece in read_pieces(version / REJECTS, REJECTED):
        for row, length in rows(piece.select(REJECTED[:4])):
            cells = piece.slice(row, 1).to_pylist()[0]
            yield length, TracedReject(**{name: cells[name] or "" for name in REJECTED})


def _partly(column: Any, word: str) -> Any:
    return pc.or_(pc.starts_with(column, word), pc.ends_with(column, f"/{word}"))


def _matches(found: Iterator[SampleRow | TracedReject], *, is_whole: bool) -> NameMatches:
    matches = NameMatches(is_whole=is_whole)
    for one in found:
        if len(matches.samples) + len(matches.rejects) >= MOST:
            matches.more += 1
        elif isinstance(one, SampleRow):
            matches.samples.append(one)
        else:
            matches.rejects.append(one)
    return matches


def _keys_of_file(version: Path, tails: Sequence[str]) -> Iterator[str]:
    """Yield the keys of samples that were made of a file whose path the name of the sample does not have."""
    if not (version / INPUTS).exists():  # tars that others wrote have no inputs
        return
    wanted = set(tails)
    try:
        for table in ArrowBatches(version / INPUTS, ("key", "file", "reason")):
            for row in table.to_pylist():
                if row["reason"] is None and wanted & _paths_in(row["file"] or ""):
                    yield row["key"]
    except DAMAGED as error:
        raise unreadable(version / INPUTS, error) from None


def _paths_in(file: str) -> set[str]:
    """Return the paths in a sample's column `file`, which for several is a list in JSON."""
    if file.startswith("["):
        try:
            return set(map(str, json.loads(file)))
        except ValueError:
            return {file}
    return {file}


def _columns(path: Path) -> list[str]:
    try:
        return list(pq.read_schema(path).names)
    except DAMAGED as error:
        raise unreadable(path, error) from None


def _pieces(path: Path, names: Sequence[str]) -> Iterator[Any]:
    """Read those of the columns that a table has: older ones know no place in the source."""
    there = _columns(path)
    return read_pieces(path, [name for name in names if name in there])


def _members(reader: SampleReader, row: int) -> tuple[Mapping[str, int], str, str]:
    """Return the sizes of a sample's members, its text, and why they cannot be read."""
    try:
        members = reader.read(row).members
    except DataError as error:
        return {}, "", str(error)
    sizes = {name: len(content) for name, content in members.items()}
    if "txt" in members:
        return sizes, bytes(members["txt"]).decode("utf-8", "replace"), ""
    try:
        turns = json_object(members.get("json", b"{}"), "source.unreadable").get("messages")
    except Reject as reject:
        return sizes, "", reject.detail
    first = turns[0] if isinstance(turns, list) and turns else {}
    return sizes, str(first.get("user", "")) if isinstance(first, dict) else "", ""


def _quarantined(version: Path, split: str, key: str) -> str:
    entries = quarantine.read_quarantine(quarantine.home(version) / quarantine.NAME)
    mine = (one for one in quarantine.of_version(version, entries) if (one.split, one.key) == (split, key))
    return next((one.reason for one in mine), "")


def _copies(
    version: Path, manifest: Manifest, place: SampleRow, progress: Progress
) -> tuple[list[SampleCopy], dict[str, int]]:
    """Compare one sample with all others, as `duplicates` compares all with each other; nothing for a version
    from before that was measured. The first MOST are named, all are counted by split."""
    paths = {split: version / samples_name(split) for split in manifest.splits}
    if any(not {*NEEDED} <= {*_columns(path)} for path in paths.values()):
        return [], {}
    target = _row(paths[place.split], place.row)
    found: list[tuple[str, int, bool]] = []
    counts: Counter[str] = Counter()
    done = 0
    for split, path in paths.items():
        start = 0
        for piece in _pieces(path, LOOKS):
            for row, is_exact in _like_first(target, piece, by_text=manifest.modality == "chat"):
                if (split, start + row) != place:
                    counts[split] += 1
                    found += [(split, start + row, is_exact)] if len(found) < MOST else []
            start += piece.num_rows
            done += piece.num_rows
            progress(done, manifest.accepted, "samples compared")
    origins = {
        split: read_origins(version, split, [row for one, row, _ in found if one == split]) for split in paths
    }
    named = [(split, origins[split][row], is_exact) for split, row, is_exact in found]
    return [SampleCopy(split, one.key, one.source, is_exact) for split, one, is_exact in named], dict(counts)


def _row(path: Path, row: int) -> Any:
    """Return one row of a table of samples as a record batch of its LOOKS."""
    start = 0
    for piece in _pieces(path, LOOKS):
        if row < start + piece.num_rows:
            return piece.slice(row - start, 1)
        start += piece.num_rows
    raise DataError(f"{path}: has no row {row:,}; see `tarmac verify`")


def _like_first(target: Any, piece: Any, *, by_text: bool) -> list[tuple[int, bool]]:
    """Return the rows of a piece that equal the target (True) or nearly do (False)."""
    looks = Looks.of([target, piece], 1 + piece.num_rows)
    exact, near = (flags[1:] for flags in like_first(looks, by_text=by_text))
    return [(row, bool(exact[row])) for row in np.flatnonzero(exact | near).tolist()]
