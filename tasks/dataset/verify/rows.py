"""Read the rows of a version's tables and index piece by piece."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.verify.seals import Misfit
from tasks.dataset.version.index import open_index
from tasks.dataset.version.layout import MOST_SHARDS, is_split, shard_name
from tasks.dataset.version.manifest import Manifest, content_digest
from tasks.dataset.version.tables import ShardRecord, give_memory_back, read_pieces, read_shards

_BLAKE3 = re.compile(r"[0-9a-f]{64}")

give_memory_back()


def by_split(version: Path) -> dict[str, list[ShardRecord]]:
    """The shards by split; Misfit unless those of every split are numbered from 0 without gaps, in order."""
    found = {split: list(mine) for split, mine in groupby(read_shards(version), key=lambda one: one.split)}
    for split, mine in found.items():
        if not is_split(split):
            raise Misfit("it gives a split a name that no split can have")
        for number, shard in enumerate(mine):
            if shard.name != shard_name(split, number):
                raise Misfit(f"another name where {shard_name(split, number)} belongs")
            if not _BLAKE3.fullmatch(shard.blake3):
                raise Misfit(f"it gives no valid BLAKE3 for {shard.name}")
            if not (0 <= shard.bytes < 1 << 50 and 0 <= shard.samples < 1 << 50):
                raise Misfit(f"the bytes or samples of {shard.name} are no possible number")
    return found


def difference(shards: Mapping[str, Sequence[ShardRecord]], manifest: Manifest) -> str | None:
    """How these shards differ from the manifest's; None where they do not."""
    every = [shard for mine in shards.values() for shard in mine]
    if content_digest((shard.name, shard.blake3) for shard in every) != manifest.digest:
        return "the checksums of the shards are not those of the manifest's digest"
    counted = {
        split: (len(mine), sum(one.samples for one in mine), sum(one.bytes for one in mine))
        for split, mine in shards.items()
    }
    stated = {
        name: (one.shards, one.samples, one.bytes) for name, one in manifest.splits.items() if one.shards
    }
    if counted != stated:
        return f"shards, samples and bytes by split are {counted}, in the manifest {stated}"
    samples = sum(shard.samples for shard in every)
    if samples != manifest.accepted:
        return f"{samples:,} samples, in the manifest {manifest.accepted:,}"
    return None


def counts_by_index(path: Path) -> list[int]:
    """The number of samples of each shard by the index."""
    index = open_index(path)
    is_first = np.diff(index["shard"].astype(np.int64), prepend=-1) != 0
    if (index["offset"] != np.where(is_first, 0, np.roll(index["offset"] + index["length"], 1))).any():
        raise Misfit("its samples do not lie one after the other")
    return _counted([np.asarray(index["shard"])])


def counts_by_samples(path: Path) -> list[int]:
    """The number of samples of each shard by the table of samples, which is in the order of the index."""

    def shard_numbers() -> Iterator[NDArray[np.uint32]]:
        row = 0
        for piece in read_pieces(path, ("key", "shard", "row")):
            if any(column.null_count for column in piece.columns):
                raise Misfit("it lacks values")
            if not np.array_equal(piece.column("row").to_numpy(), np.arange(row, row + piece.num_rows)):
                raise Misfit("its rows are not those of the index")
            row += piece.num_rows
            yield piece.column("shard").to_numpy()

    return _counted(shard_numbers())


def _counted(pieces: Iterable[NDArray[np.uint32]]) -> list[int]:
    """How often each shard's number occurs; Misfit unless the numbers ascend."""
    counts = np.zeros(0, np.int64)
    for numbers in pieces:
        first = max(len(counts) - 1, 0)
        if len(numbers) and (np.diff(numbers.astype(np.int64), prepend=first).min() < 0):
            raise Misfit("its rows are not in the order of the shards")
        if len(numbers) and numbers[-1] >= MOST_SHARDS:
            raise Misfit(f"it numbers more than {MOST_SHARDS:,} shards")
        found = np.bincount(numbers, minlength=len(counts))
        counts = found + np.pad(counts, (0, len(found) - len(counts)))
    return list(counts.tolist())


def counts_by_reason(path: Path) -> dict[str, int]:
    """The number of rejects of each reason."""
    pieces = read_pieces(path, ("key", "reason"))
    return dict(Counter(reason for piece in pieces for reason in piece.column("reason").to_pylist()))


def key_ranges(path: Path, ranges: Sequence[tuple[int, int]]) -> Iterator[list[str]]:
    """The keys of each of these ascending ranges of rows."""
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
    """The numbers of the shards that have one of these keys, each with the key."""
    for piece in read_pieces(path, ("key", "shard")):
        pairs = zip(piece.column("key").to_pylist(), piece.column("shard").to_pylist(), strict=True)
        yield from ((number, key) for key, number in pairs if key in keys)
