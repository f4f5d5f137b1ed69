"""The rows of a version's tables and index, read piece by piece, and compared where no seal proves them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.index import open_index
from tasks.dataset.layout import shard_name
from tasks.dataset.manifest import Manifest, content_digest
from tasks.dataset.tables import ShardRecord, give_memory_back, read_pieces, read_shards
from tasks.dataset.tar.format import END
from tasks.dataset.verify.seals import Misfit, read_json_bytes
from tasks.dataset.verify.tables import MOST_NAMED, is_split

_BLAKE3 = re.compile(r"[0-9a-f]{64}")

give_memory_back()


def by_split(version: Path) -> dict[str, list[ShardRecord]]:
    """Misfit unless the shards of every split are numbered from 0 without gaps, in order."""
    found = {split: list(mine) for split, mine in groupby(read_shards(version), key=lambda one: one.split)}
    for split, mine in found.items():
        if not is_split(split):
            raise Misfit("it names a split as none can be named")
        for number, shard in enumerate(mine):
            if shard.name != shard_name(split, number):
                raise Misfit(f"another name where {shard_name(split, number)} belongs")
            if not _BLAKE3.fullmatch(shard.blake3):
                raise Misfit(f"what it gives for the BLAKE3 of {shard.name} is none")
            if not (0 <= shard.bytes < 1 << 50 and 0 <= shard.samples < 1 << 50):
                raise Misfit(f"the numbers of {shard.name} are beyond all measure")
    return found


def difference(shards: Mapping[str, Sequence[ShardRecord]], manifest: Manifest) -> str | None:
    """How these are not the manifest's shards; None where they are."""
    every = [shard for mine in shards.values() for shard in mine]
    if content_digest((shard.name, shard.blake3) for shard in every) != manifest.digest:
        return "the checksums of the shards are not those of the manifest's digest"
    if manifest.accepted != sum(shard.samples for shard in every):
        return "its samples are not as many as the manifest's accepted"
    for split in sorted(manifest.splits.keys() | shards.keys()):
        mine, summary = shards.get(split, ()), manifest.splits.get(split)
        counted = (len(mine), sum(one.samples for one in mine), sum(one.bytes for one in mine))
        stated = (summary.shards, summary.samples, summary.bytes) if summary else (0, 0, 0)
        if counted != stated:
            return f"{split}: shards, samples, bytes are {counted}, in the manifest {stated}"
    return None


def counts_by_index(path: Path) -> list[int]:
    """The samples of each shard as the index has them."""
    return _counted([np.asarray(open_index(path)["shard"])])


def counts_by_samples(path: Path) -> list[int]:
    """The samples of each shard as the table of samples has them."""
    return _counted(piece.column("shard").to_numpy() for piece in read_pieces(path, ("shard",)))


def _counted(pieces: Iterable[NDArray[np.uint32]]) -> list[int]:
    """How often each shard's number comes; Misfit unless they ascend."""
    counts = np.zeros(0, np.int64)
    for numbers in pieces:
        first = max(len(counts) - 1, 0)
        if len(numbers) and (np.diff(numbers.astype(np.int64), prepend=first).min() < 0):
            raise Misfit("its rows are not in the order of the shards")
        if len(numbers) and numbers[-1] >= MOST_NAMED:
            raise Misfit("it numbers shards beyond all measure")
        found = np.bincount(numbers, minlength=len(counts))
        counts = found + np.pad(counts, (0, len(found) - len(counts)))
    return list(counts.tolist())


def require_index(path: Path, shards: Sequence[ShardRecord]) -> None:
    """Misfit unless the rows are the shards' samples, one after the other."""
    index = open_index(path)
    samples = sum(shard.samples for shard in shards)
    if len(index) != samples:
        raise Misfit(f"{len(index):,} rows for {samples:,} samples")
    start = 0
    for number, shard in enumerate(shards):
        rows = index[start : start + shard.samples]
        start += shard.samples
        stops = rows["offset"] + rows["length"]
        if (rows["shard"] != number).any():
            raise Misfit("its rows are not in the order of the shards")
        if len(rows) and (rows["offset"][0] or (rows["offset"][1:] != stops[:-1]).any()):
            raise Misfit("its samples do not lie one after the other")
        end = int(stops[-1]) if len(rows) else 0
        if end != shard.bytes - len(END):
            raise Misfit(
                f"its samples end at byte {end:,}, those of {shard.name} at {shard.bytes - len(END):,}"
            )


def require_samples(path: Path, shards: Sequence[ShardRecord]) -> None:
    """Misfit unless there is a row for each sample, in the order of the shards."""
    stops = list(accumulate(shard.samples for shard in shards))
    row = 0
    for piece in read_pieces(path, ("key", "shard", "row")):
        if any(column.null_count for column in piece.columns):
            raise Misfit("it lacks values")
        rows = np.arange(row, row + piece.num_rows)
        if not np.array_equal(piece.column("row").to_numpy(), rows):
            raise Misfit("its rows are not those of the index")
        if not np.array_equal(piece.column("shard").to_numpy(), np.searchsorted(stops, rows, side="right")):
            raise Misfit("its samples are not in the shards of shards.parquet")
        row += piece.num_rows
    if row != sum(shard.samples for shard in shards):
        raise Misfit(f"{row:,} rows for {stops[-1] if stops else 0:,} samples")


def require_sizes(path: Path, shards: Sequence[ShardRecord]) -> None:
    if json.loads(read_json_bytes(path)) != {shard.name.partition("/")[2]: shard.samples for shard in shards}:
        raise Misfit("it differs from shards.parquet")


def require_rejects(path: Path, manifest: Manifest) -> None:
    """Misfit unless there are as many of each reason as the manifest says."""
    counted: Counter[str] = Counter()
    for piece in read_pieces(path, ("key", "reason")):
        counted.update(piece.column("reason").to_pylist())
    if counted != manifest.rejects:
        raise Misfit(f"its {counted.total():,} rejects are not those that the manifest counts")


def key_ranges(path: Path, ranges: Sequence[tuple[int, int]]) -> Iterator[list[str]]:
    pieces = iter(read_pieces(path, ("key",)))
    held: list[str] = []
    first = 0
    for start, stop in ranges:
        while first + len(held) < stop:
            piece = next(pieces, None)
            if piece is None:
                raise Misfit("it has fewer rows than samples")
            if first + len(held) + piece.num_rows <= start:
                first += len(held) + piece.num_rows
                held = []
            else:
                held += piece.column("key").to_pylist()
        yield held[start - first : stop - first]
        held = held[stop - first :]
        first = stop


def holders(path: Path, keys: Collection[str]) -> Iterator[tuple[int, str]]:
    """The numbers of the shards that have one of these keys, and the key."""
    for piece in read_pieces(path, ("key", "shard")):
        pairs = zip(piece.column("key").to_pylist(), piece.column("shard").to_pylist(), strict=True)
        yield from ((number, key) for key, number in pairs if key in keys)
