"""Examine one shard: read it once with the tolerant reader, and name what is wrong with it and its samples.

Only shards that no seal proves come here, and all of them at the level full. Where a tar is not as it was
built, its samples are read a second time, to compare each with its CRC32C in the index.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.dataset.modalities import MODALITIES
from tasks.dataset.verify.findings import DIGITS, Fault, Fix, fault, shard_place, shortened
from tasks.dataset.verify.sample_checks import Repeats, faults_of_sets, located, sets_by_key
from tasks.dataset.verify.scan import NumberedFault, ShardScan, ShardTask, Suffixes
from tasks.dataset.version.layout import index_name, samples_name

WHOLE = ("shard.truncated", "shard.checksum")
"""Faults of a shard that put all samples in doubt which nothing proves."""


@dataclass(frozen=True)
class ShardResult:
    """What the examination of a shard found.

    `blake3` is None for tars that others wrote. `is_read` is false when the tar could not be read to its end.
    `faults` are those of the shard as a whole, then those of its samples in their order, and of each code no
    more than are listed; `bad` has the key of every bad sample, with the code of the first thing that is
    wrong with it. `keys` holds each key once, with the members of its sample, or with None where some may be
    lost or where a modality names the required ones; `strangers` are keys that the tables do not have in this
    shard. `undecoded` are the ends of suffixes that no decoder knows.
    """

    name: str
    blake3: str | None = None
    is_read: bool = True
    faults: Sequence[Fault] = ()
    bad: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, Suffixes | None] = field(default_factory=dict)
    strangers: frozenset[str] = frozenset()
    undecoded: frozenset[str] = frozenset()


def check_shard(task: ShardTask) -> ShardResult:
    """Examine one shard from its first byte to its last; no content of the data makes this raise.

    StoreUnreachable when a remote store does not answer, which is not the shard's fault.
    """
    with warnings.catch_warnings() if task.decodes else contextlib.nullcontext():
        if task.decodes:
            warnings.simplefilter("ignore")  # a decoder's warning is a fault, or it does not matter
        return _check(task)


def _check(task: ShardTask) -> ShardResult:
    scan = ShardScan(task)
    if isinstance(scan.error, FileNotFoundError):
        code = "shard.missing"
        bad = dict.fromkeys(task.keys or (), code)
        return ShardResult(task.name, is_read=False, faults=[fault(code, shard_place(task.name))], bad=bad)
    modality = MODALITIES.get(task.modality or "")
    repeats = Repeats(scan)
    whole = list(_whole(scan, repeats))
    notes = [*scan.notes, *repeats.notes, *faults_of_sets(scan, modality, repeats)]
    of_samples = located(scan, notes)
    return ShardResult(
        task.name,
        scan.blake3,
        is_read=scan.error is None,
        faults=[*whole, *shortened(_sample_fault(task, key, note) for key, note in of_samples)],
        bad=_bad_samples(scan, whole, of_samples),
        keys=dict.fromkeys(scan.keys) if modality else sets_by_key(scan, repeats),
        strangers=frozenset(scan.keys).difference(task.keys or ()) if task.is_own else frozenset(),
        undecoded=frozenset(scan.decoder.undecoded if scan.decoder else ()),
    )


def _whole(scan: ShardScan, repeats: Repeats) -> Iterator[Fault]:
    """The faults of the shard as a whole."""
    task, at = scan.task, shard_place(scan.task.name)
    if scan.error is not None:
        place = f" at byte {scan.size_bytes:,}" if scan.size_bytes else ""
        problem = f"unreadable{place}: {scan.error.strerror or scan.error}"
        fix = Fix.RIGHTS if isinstance(scan.error, PermissionError) else Fix.SHARD
        yield fault("shard.checksum", at, fix, problem=problem)
        return
    count = len(scan.keys) - len(repeats.continued)
    if scan.cut is not None:
        whole = count - len(scan.torn)
        lost = {"lost_samples": max(task.samples - whole, 0)} if task.samples is not None else {}
        yield fault("shard.truncated", at, problem=str(scan.cut), whole_samples=whole, **lost)
    evidence = _damage(scan)
    if not scan.is_as_built and task.blake3 and scan.blake3 and (evidence or scan.cut is None):
        evidence |= {"blake3": scan.blake3[:DIGITS], "expected": task.blake3[:DIGITS]}
    if evidence:
        yield fault("shard.checksum", at, **evidence)
    if task.samples is None or scan.cut or scan.gaps:
        return
    if count != task.samples:
        yield fault("shard.count", at, samples=count, expected=task.samples)
    elif scan.is_as_built and not scan.differing and task.index is not None:
        starts = [start for number, start in enumerate(scan.starts) if number not in repeats.continued]
        if starts != scan.spans.starts:
            others = set(scan.spans.starts).difference(starts)
            problem = f"{len(others) or 'all'} of its rows are not where the tar's samples are"
            yield fault("index.mismatch", {**at, "file": index_name(task.split)}, Fix.TABLE, problem=problem)


def _damage(scan: ShardScan) -> dict[str, Any]:
    """What is wrong with the bytes of the shard besides an early end."""
    if scan.gap is not None:
        return {"problem": str(scan.gap), **({"gaps": scan.gaps} if scan.gaps > 1 else {})}
    if scan.cut is not None and scan.differing:
        return {"problem": f"{len(scan.differing)} samples before its end differ from what was built"}
    return {}


def _sample_fault(task: ShardTask, key: str | None, note: NumberedFault) -> Fault:
    files = {"index.mismatch": index_name(task.split), "manifest.invalid": samples_name(task.split)}
    where = {**shard_place(task.name), "file": files.get(note.code), "key": key, "member": note.member}
    known = {name: value for name, value in where.items() if value is not None}
    return fault(note.code, known, note.fix, **note.evidence)


def _bad_samples(
    scan: ShardScan, whole: Sequence[Fault], of_samples: Sequence[tuple[str | None, NumberedFault]]
) -> dict[str, str]:
    """The keys of bad samples, each with its first code; where there are tables, only keys that they have."""
    bad: dict[str, str] = {}
    keys = scan.task.keys
    known = None if keys is None or not of_samples else frozenset(keys)
    for key, note in of_samples:
        if key is not None and (known is None or key in known):
            bad.setdefault(key, note.code)
    reason = next((one.code for one in whole if one.code in WHOLE and one.fix is not Fix.RIGHTS), None)
    if reason is not None and keys is not None:
        for row in range(len(keys)) if scan.task.index is None else scan.lost:
            bad.setdefault(keys[row], reason)
    return bad
