"""The quarantine of a dataset: adding to it, taking out of it, and which samples of a version it means.

Its file is replaced whole by rename, under a lease of its own, since a build may hold the dataset's for
hours. tasks.core.quarantine_file has its format.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.core.files import write_atomic
from tasks.core.lock import Lease
from tasks.core.quarantine_file import NAME, Quarantined, home, read_quarantine, to_text
from tasks.core.units import counted
from tasks.dataset.layout import MANIFEST, samples_name, shard_name
from tasks.dataset.manifest import SplitSummary, read_manifest, version_name

__all__ = [
    "BY_BYTES",
    "NAME",
    "SEEN",
    "Quarantined",
    "add",
    "by_split",
    "home",
    "left_out_text",
    "notice",
    "of_version",
    "read_quarantine",
    "remove",
    "rows",
]

SEEN = {
    "quick": {"shard.missing", "shard.truncated"},
    "default": {
        "shard.checksum",
        "shard.count",
        "sample.duplicate_key",
        "sample.split_members",
        "sample.missing_member",
        "member.checksum",
        "member.empty",
        "member.unsafe",
        "index.mismatch",
        "manifest.invalid",
    },
    "full": {"member.undecodable"},
}
"""The reasons that a level finds, besides those of the levels before it."""
BY_BYTES = SEEN["quick"] | SEEN["default"]
"""What cannot be wrong with a shard whose bytes are as they were built, unless they were built so."""
LEASE = "quarantine.lease"
WAIT_S = 60.0
"""Others who change the file hold it for milliseconds."""

Rows = NDArray[np.int64]
"""Sorted, without repetition."""


def add(dataset: Path, entries: Iterable[Quarantined]) -> int:
    """Add those whose samples are not there yet, in one step; how many that were."""
    path = dataset / NAME
    with _alone(dataset):
        kept = {entry.sample: entry for entry in read_quarantine(path)}
        before = len(kept)
        for entry in sorted(entries):
            kept.setdefault(entry.sample, entry)
        if len(kept) > before:
            write_atomic(path, to_text(kept.values()))
        return len(kept) - before


def remove(dataset: Path, entries: Iterable[Quarantined]) -> int:
    """Take the entries of these samples out, in one step; how many there were."""
    path = dataset / NAME
    gone = {entry.sample for entry in entries}
    with _alone(dataset):
        before = read_quarantine(path)
        kept = [entry for entry in before if entry.sample not in gone]
        if len(kept) < len(before):
            write_atomic(path, to_text(kept))
        return len(before) - len(kept)


def of_version(version: Path, entries: Iterable[Quarantined]) -> list[Quarantined]:
    """Those that are about this version, named by its folder or by its manifest's content."""
    names = {version.resolve().name}
    with contextlib.suppress(OSError):
        names.add(version_name((version / MANIFEST).read_bytes()))
    return [entry for entry in entries if entry.version in names]


def by_split(entries: Iterable[Quarantined]) -> dict[str, int]:
    """How many samples of each split these are, for the splits that have any."""
    samples = {(entry.split, *entry.sample) for entry in entries}
    return dict(sorted(Counter(split for split, *_ in samples).items()))


def left_out_text(splits: Mapping[str, SplitSummary], entries: Iterable[Quarantined]) -> str:
    """`161 of 1,539 train samples are left out: quarantine.jsonl`, empty for no entries. They are about one
    version, whose splits are `splits`; a split that is not among them is named without its size."""
    left_out = by_split(entries)
    if not left_out:
        return ""
    parts = [
        f"{samples:,} of {counted(splits[name].samples, f'{name} sample')}"
        if name in splits
        else counted(samples, f"{name} sample")
        for name, samples in left_out.items()
    ]
    verb = "is" if sum(left_out.values()) == 1 else "are"
    return f"{' and '.join(parts)} {verb} left out: {NAME}"


def notice(version: Path, entries: Iterable[Quarantined]) -> str | None:
    """Which samples of the version are left out, and how to take them back; None where none of these is about
    it. DataError for a manifest that cannot be read."""
    mine = of_version(version, entries)
    if not mine:
        return None
    dataset = shlex.quote(os.path.relpath(home(version)))
    said = left_out_text(read_manifest(version).splits, mine)
    return f"{said}; tarmac repair {dataset} takes back what is sound"


def rows(version: Path, split: str, entries: Iterable[Quarantined]) -> Rows:
    """The rows, in the split's index, of those entries that are about this split of this version.

    One pass over keys and shards in `samples/<split>.parquet`, group by group. DataError when that cannot be
    read, and for an entry that means no sample of the split.
    """
    wanted = {(entry.shard, entry.key) for entry in of_version(version, entries) if entry.split == split}
    found = _find(version, split, wanted) if wanted else {}
    missing = sorted(wanted - set(found.values()))
    if missing:
        shard, key = missing[0]
        path = home(version) / NAME
        raise DataError(f"{path}: {version.name} has no sample {key!r} in {shard}; delete the line")
    return np.array(sorted(found), np.int64)


def _find(version: Path, split: str, wanted: set[tuple[str, str]]) -> dict[int, tuple[str, str]]:
    """The shard and key of each row that is wanted."""
    import pyarrow as pa  # here, because loader workers import this and most datasets have no quarantine
    import pyarrow.compute as pc

    from tasks.dataset.tables import read_pieces

    keys = pa.array(sorted({key for _, key in wanted}))
    found = {}
    for piece in read_pieces(version / samples_name(split), ("key", "shard", "row")):
        for row in piece.filter(pc.is_in(piece.column("key"), value_set=keys)).to_pylist():
            sample = shard_name(split, row["shard"]), row["key"]
            if sample in wanted:
                found[int(row["row"])] = sample
    return found


@contextlib.contextmanager
def _alone(dataset: Path) -> Iterator[None]:
    """DataError for a folder that this process may not write."""
    lease = Lease(dataset / LEASE)
    try:
        lease.wait(WAIT_S, poll_s=0.05)
        try:
            yield
        finally:
            lease.release()
    except OSError as error:
        raise DataError(f"{dataset / NAME}: cannot be written ({error.strerror}); mind its rights") from None
