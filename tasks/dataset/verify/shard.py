"""One shard examined: read once by the tolerant reader, and what is wrong with it and its samples named.

Only shards that no seal proves come here, and all of them at the level full. Where a tar is not as it was
built, its samples are read a second time, to compare each with its CRC32C in the index.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.dataset.layout import index_name, samples_name
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.verify.findings import DIGITS, Fault, Fix, fault, shard_place, shortened
from tasks.dataset.verify.sample_checks import Repeats, faults_of_sets, located, sets_by_key
from tasks.dataset.verify.scan import NumberedFault, ShardScan, ShardTask, Spans, Suffixes
from tasks.dataset.verify.tars import open_file

WHOLE = ("shard.truncated", "shard.checksum")
"""Faults of a shard that put those of its samples in doubt which nothing proves."""


@dataclass(frozen=True)
class ShardResult:
    """What was found in a shard.

    `blake3` is that of one of our own tars. Not `is_read` when it could not be read to its end. `faults` are
    those of the shard as a whole, then those of its samples in their order, of each code no more than are
    listed; `bad` has the key of every bad sample, with the code of the first thing that is wrong with it.
    `keys` holds each key once with the members of its sample, or None where some may be lost and where a
    modality says what is required; `strangers` are those that the tables do not have in this shard.
    `undecoded` are the ends of suffixes that no decoder knows.
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
    if isinstance(scan.error, FileNotFoundError):
        code = "shard.missing"
        bad = dict.fromkeys(task.keys or (), code)
        return ShardResult(task.name, is_read=False, faults=[fault(code, shard_place(task.name))], bad=bad)
    modality = MODALITIES.get(task.modality or "")
    repeats = Repeats(scan)
    end = scan.cut.offset if scan.cut else scan.size_bytes if scan.error else None
    lost = spans.lost(end)
    is_as_built = task.blake3 is not None and scan.blake3 == task.blake3
    differing: list[int] = []
    if spans.starts and (task.compares or not is_as_built):
        with contextlib.suppress(OSError), open_file(task.folder, task.name) as file:
            differing = list(spans.differing(file, lost.start))
    whole = list(_whole(task, scan, spans, repeats, differing, is_as_built))
    notes = [*scan.notes, *repeats.notes, *faults_of_sets(scan, modality, repeats)]
    of_samples = located(task, scan, spans, notes, differing, is_as_built)
    return ShardResult(
        task.name,
        scan.blake3,
        is_read=scan.error is None,
        faults=[*whole, *shortened(_sample_fault(task, key, note) for key, note in of_samples)],
        bad=_bad_samples(task, whole, of_samples, lost),
        keys=dict.fromkeys(scan.keys) if modality else sets_by_key(scan, repeats),
        strangers=frozenset(scan.keys).difference(task.keys or ()) if task.is_own else frozenset(),
        undecoded=frozenset(scan.decoder.undecoded if scan.decoder else ()),
    )


def _whole(
    task: ShardTask, scan: ShardScan, spans: Spans, repeats: Repeats, differing: list[int], is_as_built: bool
) -> Iterator[Fault]:
    """What is wrong with the shard as a whole."""
    at = shard_place(task.name)
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
    evidence = _damage(scan, differing)
    if not is_as_built and task.blake3 and scan.blake3 and (evidence or scan.cut is None):
        evidence |= {"blake3": scan.blake3[:DIGITS], "expected": task.blake3[:DIGITS]}
    if evidence:
        yield fault("shard.checksum", at, **evidence)
    if task.samples is None or scan.cut or scan.gaps:
        return
    if count != task.samples:
        yield fault("shard.count", at, samples=count, expected=task.samples)
    elif is_as_built and not differing and task.index is not None:
        starts = [start for number, start in enumerate(scan.starts) if number not in repeats.continued]
        if starts != spans.starts:
            others = set(spans.starts).difference(starts)
            problem = f"{len(others) or 'all'} of its rows are not where the tar's samples are"
            yield fault("index.mismatch", {**at, "file": index_name(task.split)}, Fix.TABLE, problem=problem)


def _damage(scan: ShardScan, differing: list[int]) -> dict[str, Any]:
    """What is wrong besides an early end."""
    if scan.gap is not None:
        return {"problem": str(scan.gap), **({"gaps": scan.gaps} if scan.gaps > 1 else {})}
    if scan.cut is not None and differing:
        return {"problem": f"{len(differing)} samples before its end differ from what was built"}
    return {}


def _sample_fault(task: ShardTask, key: str | None, note: NumberedFault) -> Fault:
    files = {"index.mismatch": index_name(task.split), "manifest.invalid": samples_name(task.split)}
    where = {**shard_place(task.name), "file": files.get(note.code), "key": key, "member": note.member}
    known = {name: value for name, value in where.items() if value is not None}
    return fault(note.code, known, note.fix, **note.evidence)


def _bad_samples(
    task: ShardTask,
    whole: Sequence[Fault],
    of_samples: Sequence[tuple[str | None, NumberedFault]],
    lost: range,
) -> dict[str, str]:
    """The keys of bad samples, by the tables where there are any, each with its first code."""
    bad: dict[str, str] = {}
    known = None if task.keys is None or not of_samples else frozenset(task.keys)
    for key, note in of_samples:
        if key is not None and (known is None or key in known):
            bad.setdefault(key, note.code)
    reason = next((one.code for one in whole if one.code in WHOLE and one.fix is not Fix.RIGHTS), None)
    if reason is not None and task.keys is not None:
        for row in range(len(task.keys)) if task.index is None else lost:
            bad.setdefault(task.keys[row], reason)
    return bad
