"""What a look has ruled out, and what it could not see: as much part of the answer as what it has found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tasks.core.units import counted
from tasks.dataset.verify.records import Task

Level = Literal["quick", "default", "full"]
LookInside = Callable[[Iterator[Task], Mapping[str, int]], None]
"""Has the shards of the tasks read, whose sizes are given by name."""

NOT_READ = "the bytes within the shards"
NOT_DECODED = "whether members decode"
BY_LOOK = ("sample.split_members", "sample.missing_member", "member.empty", "member.unsafe")


@dataclass(frozen=True)
class Seen:
    """How much of what was looked at: shards that were named and those that were read, samples within them;
    files beside the tars that are as they were built; whether the tars are, all together."""

    level: Level
    shards: int
    read: int = 0
    samples: int = 0
    confirmed: int = 0
    splits: int = 0
    has_tables: bool = False
    has_digest: bool = False
    undecoded: Collection[str] = ()
    zipped: int = 0
    beside: Collection[str] = ()


def ruled_out(seen: Seen, codes: Collection[str]) -> list[Mapping[str, str]]:
    """Every code of which nothing was found although it was looked for, with the evidence."""
    return [{"code": code, "evidence": text} for code, text in _evidence(seen) if code not in codes]


def _evidence(seen: Seen) -> Iterator[tuple[str, str]]:
    if not seen.shards:
        return
    every = f"{seen.shards:,} of {counted(seen.shards, 'shard')}"
    if seen.confirmed:
        yield "manifest.invalid", f"{counted(seen.confirmed, 'file')} beside the tars, as they were built"
        yield "index.mismatch", f"the index of {counted(seen.splits, 'split')} fits the shards"
    yield "shard.missing", f"{every} there"
    if seen.has_tables:
        yield "shard.extra", "no other tar beside them"
    if not seen.zipped:
        size = "have their size and " if seen.has_tables else ""
        yield "shard.truncated", f"{every} {size}end in two zero blocks"
    if seen.level == "quick":
        return
    samples = counted(seen.samples, "sample")
    if seen.has_tables and seen.read == seen.shards:
        yield "shard.checksum", f"{every} have the BLAKE3 of shards.parquet"
        yield "member.checksum", f"{samples} are as they were built"
    elif seen.has_digest:
        yield "shard.checksum", "all tars together have the digest of the manifest: each is as it was built"
    yield "sample.duplicate_key", f"{samples}, no key twice"
    for code in BY_LOOK:
        yield code, f"{samples} looked at"
    if seen.level == "full" and not seen.undecoded:
        yield "member.undecodable", f"every member of {samples} decodes"


def not_seen(seen: Seen) -> list[str]:
    unseen = list(seen.beside)
    if seen.level == "quick":
        zipped = [f"whether {counted(seen.zipped, 'gzip file')} can be unpacked whole"] if seen.zipped else []
        return [NOT_READ, NOT_DECODED, *zipped, *unseen]
    if seen.level == "default":
        return [NOT_DECODED, *unseen]
    if seen.undecoded:
        suffixes = ", ".join(sorted(seen.undecoded)[:12])
        unseen.append(f"{NOT_DECODED} that end in {suffixes}: no decoder knows these")
    return unseen
