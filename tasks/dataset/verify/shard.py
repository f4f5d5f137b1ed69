"""One shard examined: read once by the tolerant reader, and what is wrong with it and its samples named.

Only shards that no seal proves come here, and all of them at the level full. Where a tar is not as it was
built, its samples are read a second time, to compare each with its CRC32C in the index.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.layout import index_name
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.verify.report import Fault, Fix, fault, shard_place
from tasks.dataset.verify.sample_checks import Repeats, SampleFault, faults_of_sets, located, sets_by_key
from tasks.dataset.verify.scan import ShardScan, Spans, Suffixes
from tasks.dataset.verify.tars import open_file

DIGITS = 12
"""Of a checksum, for a message."""


@dataclass(frozen=True)
class ShardTask:
    """A shard to examine: `name` relative to `folder`, which is local or remote.

    `blake3`, `samples`, `index` and `keys` are what the version's tables say of it, None where there is no
    such table. `compares` says that index and keys have no seal and are to be compared with the tar.
    `decodes` is the level full.
    """

    folder: str
    name: str
    blake3: str | None = None
    samples: int | None = None
    index: NDArray[np.void] | None = None
    keys: Sequence[str] | None = None
    compares: bool = False
    is_own: bool = False
    modality: str | None = None
    decodes: bool = False

    @property
    def split(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class ShardResult:
    """What was found in a shard.

    `blake3` is that of one of our own tars. `is_absent` when there is no file, not `is_read` when it could
    not be read to its end. `faults` are
    of the shard as a whole, `sample_faults` of its samples, in their order. `keys` holds each key once with
    the number of its set of members in `sets`, or -1 where members may be lost. `undecoded` are the ends of
    suffixes that no decoder knows. `lost` are the rows that a cut tar does not hold whole.
    """

    name: str
    blake3: str | None = None
    is_absent: bool = False
    is_read: bool = True
    faults: list[Fault] = field(default_factory=list)
    sample_faults: list[SampleFault] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    sets: list[Suffixes] = field(default_factory=list)
    undecoded: frozenset[str] = frozenset()
    lost: range = range(0)


def check_shard(task: ShardTask) -> ShardResult:
    """Examine one shard from its first byte to its last; for what data may hold it never raises.

    Unreachable when a remote store does not answer: that is no shard's fault.
    """
    with warnings.catch_warnings() if task.decodes else contextlib.nullcontext():
        if task.decodes:
            warnings.simplefilter("ignore")  # what decoders have to say is a fault, or nothing
        return _check(task)


def _check(task: ShardTask) -> ShardResult:
    spans = Spans.of(task.index)
    scan = ShardScan(task, spans)
    if scan.is_absent:
        return ShardResult(task.name, is_absent=True)
    modality = MODALITIES.get(task.modality or "")
    repeats = Repeats(scan)
    end = scan.cut.offset if scan.cut else scan.size_bytes if scan.error else None
    lost = spans.lost(end)
    is_as_built = task.blake3 is not None and scan.blake3 == task.blake3
    differing: list[int] = []
    if spans.starts and (task.compares or not is_as_built):
        with contextlib.suppress(OSError), open_file(task.folder, task.name) as file:
            differing = list(spans.differing(file, lost.start))
    noted = [*scan.notes, *repeats.notes(), *faults_of_sets(scan, modality, repeats)]
    names, of_key = sets_by_key(scan, repeats)
    return ShardResult(
        task.name,
        scan.blake3,
        is_read=scan.error is None,
        faults=list(_whole(task, scan, spans, repeats, differing, is_as_built)),
        sample_faults=located(task, scan, spans, noted, differing, is_as_built),
        keys=of_key,
        sets=names,
        undecoded=frozenset(scan.decoder.undecoded if scan.decoder else ()),
        lost=lost,
    )


def _whole(
    task: ShardTask, scan: ShardScan, spans: Spans, repeats: Repeats, differing: list[int], is_as_built: bool
) -> Iterator[Fault]:
    """What is wrong with the shard as a whole."""
    at = shard_place(task.name)
    if scan.error is not None:
        yield fault("shard.checksum", at, Fix.RIGHTS if scan.is_forbidden else Fix.SHARD, problem=scan.error)
        return
    count = len(scan.keys) - len(repeats.continued)
    if scan.cut is not None:
        whole = count - len(scan.torn)
        lost = {"lost_samples": max(task.samples - whole, 0)} if task.samples is not None else {}
        yield fault("shard.truncated", at, problem=str(scan.cut), whole_samples=whole, **lost)
    evidence = _damage(scan, differing)
    if not is_as_built and task.blake3 and scan.blake3 and (evidence or scan.cut is None):
        evidence |= {"blake3": scan.blake3[:DIGITS], "expected": task.blake3[:DIGITS]}
    if evidence:
        yield fault("shard.checksum", at, **evidence)
    if task.samples is None or scan.cut or scan.gaps:
        return
    if count != task.samples:
        yield fault("shard.count", at, samples=count, expected=task.samples)
    elif is_as_built and not differing and spans.starts:
        starts = [start for number, start in enumerate(scan.starts) if number not in repeats.continued]
        if starts != spans.starts:
            others = sorted(set(spans.starts).difference(starts))
            problem = f"no sample starts at byte {others[0]:,}; {len(others)} of its rows are elsewhere"
            yield fault("index.mismatch", {**at, "file": index_name(task.split)}, Fix.TABLE, problem=problem)


def _damage(scan: ShardScan, differing: list[int]) -> dict[str, Any]:
    """What is wrong besides an early end."""
    if scan.gap is not None:
        return {"problem": str(scan.gap), **({"gaps": scan.gaps} if scan.gaps > 1 else {})}
    if scan.cut is not None and differing:
        return {"problem": f"{len(differing)} samples before its end differ from what was built"}
    return {}
