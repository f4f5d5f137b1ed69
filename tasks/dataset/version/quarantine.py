"""The quarantine of a dataset: adding samples, taking them out, and finding their rows in a version.

The file is replaced whole by rename, under a lease of its own, since a build may hold the dataset's lease for
hours. tasks.core.quarantine_file defines the format.
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
from tasks.dataset.version.layout import MANIFEST, samples_name, shard_name
from tasks.dataset.version.manifest import SplitSummary, read_manifest, version_name

__all__ = ["NAME", "Quarantined", "home", "read_quarantine"]  # besides what is defined here

_QUICK = frozenset({"shard.missing", "shard.truncated"})
BY_BYTES = _QUICK | {
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
}
"""Reasons that do not apply to a shard whose bytes are as they were built, unless it was built with the
fault."""
REASONS = {"quick": _QUICK, "default": BY_BYTES, "full": BY_BYTES | {"member.undecodable"}}
"""The reasons that verify finds at each level."""
LEASE = "quarantine.lease"
WAIT_S = 60.0
"""How long to wait for others who change the file; they hold it for milliseconds."""

Rows = NDArray[np.int64]
"""Sorted, without repetition."""


def add(dataset: Path, entries: Iterable[Quarantined]) -> int:
    """Add the entries whose samples are not listed yet, in one step, and return how many they were."""
    path = dataset / NAME
    with _alone(dataset):
        listed = {entry.sample: entry for entry in read_quarantine(path)}
        before = len(listed)
        for entry in sorted(entries):
            listed.setdefault(entry.sample, entry)
        if len(listed) > before:
            write_atomic(path, to_text(listed.values()))
        return len(listed) - before


def remove(dataset: Path, entries: Iterable[Quarantined]) -> int:
    """Take the entries of these samples out, in one step, and return how many they were."""
    path = dataset / NAME
    gone = {entry.sample for entry in entries}
    with _alone(dataset):
        before = read_quarantine(path)
        kept = [entry for entry in before if entry.sample not in gone]
        if len(kept) < len(before):
            write_atomic(path, to_text(kept))
        return len(before) - len(kept)


def of_version(version: Path, entries: Iterable[Quarantined]) -> list[Quarantined]:
    """The entries that are about this version, by the name of its folder or by its manifest's content."""
    names = {version.resolve().name}
    with contextlib.suppress(OSError):
        names.add(version_name((version / MANIFEST).read_bytes()))
    return [entry for entry in entries if entry.version in names]


def by_split(entries: Iterable[Quarantined]) -> dict[str, int]:
    """The number of samples that these entries name, for each split that has any."""
    samples = {(entry.split, *entry.sample) for entry in entries}
    return dict(sorted(Counter(split for split, *_ in samples).items()))


def left_out_text(splits: Mapping[str, SplitSummary], entries: Iterable[Quarantined]) -> str:
    """`161 of 1,539 train samples are left out: quarantine.jsonl`, or "" without entries. The entries are
    about one version, which has these splits; any other split is named without its size."""
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
    """A line on how many samples of the version are left out, and how to take them back; None where no entry
    is about it. DataError for a manifest that cannot be read."""
    mine = of_version(version, entries)
    if not mine:
        return None
    dataset = shlex.quote(os.path.relpath(home(version)))
    text = left_out_text(read_manifest(version).splits, mine)
    return f"{text}; tarmac repair {dataset} takes back what is sound"


def rows(version: Path, split: str, entries: Iterable[Quarantined]) -> Rows:
    """The rows in the split's index that the entries about this split of this version name.

    This takes one pass over keys and shards in `samples/<split>.parquet`, group by group. DataError when the
    table cannot be read, and for an entry that names no sample of the split.
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
    """The shard and key of each wanted sample, by its row."""
    import pyarrow as pa  # here, because loader workers import this and most datasets have no quarantine
    import pyarrow.compute as pc

    from tasks.dataset.version.tables import read_pieces

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
    """Hold the quarantine's lease; DataError for a folder that this process may not write."""
    lease = Lease(dataset / LEASE)
    try:
        lease.wait(WAIT_S, poll_s=0.05)
        try:
            yield
        finally:
            lease.release()
    except OSError as error:
        raise DataError(
            f"{dataset / NAME}: cannot be written ({error.strerror}); check its permissions"
        ) from None
