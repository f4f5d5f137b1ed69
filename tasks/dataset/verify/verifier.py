"""Is a dataset sound? Verify answers at three levels, each of which includes the one before.

`quick` checks the files beside the tars, and the names, sizes and end blocks of the tars, without reading
them. `default` reads every byte: it compares a version's tars with their BLAKE3, and does not examine what a
seal proves any further; it follows tars of others member by member. `full` decodes every member and applies
the modality's rules. All causes are reported, not only the first; torn files are findings, never a crash.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Set
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tasks.core.findings import Finding, Report
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import is_remote
from tasks.dataset.verify import foreign, remembered, version
from tasks.dataset.verify.examination import BadSample, ShardExamination
from tasks.dataset.verify.findings import (
    AGAIN,
    FOREIGN,
    LEFT,
    REINDEX,
    REPAIR,
    RESEND,
    RIGHTS,
    Coverage,
    Fault,
    Fix,
    Level,
    not_seen,
    ruled_out,
)
from tasks.dataset.verify.place import ShardLocation, locate

__all__ = ["BadSample", "Level", "verify", "verify_anew", "verify_version"]


def verify(
    path: Path | str,
    level: Level = "default",
    progress: Progress = no_progress,
    *,
    on_bad: Callable[[BadSample], None] | None = None,
    known: Set[str] = frozenset(),
) -> Report:
    """Judge the dataset, the version or the tars at `path`: a path, an address or a pattern.

    `on_bad` is called once for every bad sample. The content of the `known` shards of a version, such as
    `train/000007.tar`, is taken for sound. What is found is remembered in the dataset's folder. UsageError
    when there is nothing to judge, StoreUnreachable when a remote store does not answer, DataError when the
    disk of the temporary folder is full.
    """
    place, began = locate(path), time.time()
    with closing(ShardExamination(level, progress, on_bad, known)) as outcome:
        if place.fault is not None:
            outcome.faults.append(place.fault)
            coverage = Coverage(level, 0)
        elif place.is_version:
            coverage = version.examine_version(place.folder, outcome)
        else:
            coverage = foreign.examine_foreign_tars(place, outcome)
    findings = _findings(outcome.faults, place)
    report = Report(findings, ruled_out(coverage, outcome.faults), not_seen(coverage))
    if place.is_version and not is_remote(place.folder):
        remembered.remember(Path(place.folder), level, began, report)
    return report


def verify_anew(path: str, level: Level, progress: Progress = no_progress) -> Report:
    """Verify as `verify` does, except for what was found sound before at this level."""
    place = locate(path)
    is_ours = place.is_version and not is_remote(place.folder)
    known = remembered.known_shards(Path(place.folder), level) if is_ours else frozenset[str]()
    return verify(path, level, progress, known=known)


def verify_version(version: Path, progress: Progress = no_progress) -> Report:
    """Report whether a version may be trained on, by verifying its folder at the default level, except for
    what was found sound before.

    Findings become warnings where every bad sample is set aside in the quarantine, because training leaves
    these samples out. Errors as in `verify`; DataError for a torn quarantine.
    """
    from tasks.dataset.version import quarantine  # it imports numpy, which `verify` can do without

    bad: list[BadSample] = []
    known = remembered.known_shards(version, "default")
    report = verify(version, "default", progress, on_bad=bad.append, known=known)
    if report.ok:
        return report
    listed = quarantine.read_quarantine(quarantine.home(version) / quarantine.NAME)
    aside = {(entry.shard, entry.key) for entry in quarantine.of_version(version, listed)}
    shards = {one.shard for one in bad}
    are_aside = aside.issuperset((one.shard, one.key) for one in bad)
    if not are_aside or any(found.where.get("shard") not in shards for found in report.findings):
        return report
    return replace(report, findings=[replace(found, severity="warning") for found in report.findings])


def _findings(faults: Iterable[Fault], place: ShardLocation) -> list[Finding]:
    """One finding for each code and place, with all evidence: size and content may show the same damage.

    Files beside the tars come first, then the shards one after the other.
    """
    by_place: dict[tuple[str, ...], Fault] = {}
    for one in faults:
        where = (one.code, *map(str, one.where.values()))
        known = by_place.get(where)
        if known is not None:
            evidence = {**known.evidence, **one.evidence}
            if LEFT in evidence:
                evidence[LEFT] = known.left + one.left
            one = replace(known, evidence=evidence)
        by_place[where] = one
    ordered = sorted(by_place.values(), key=lambda one: str(one.where.get("shard", "")))
    options = " --config CONFIG" if any(one.fix is Fix.SEAL for one in ordered) else ""
    return [_worded(one, place, options) for one in ordered]


def _worded(one: Fault, place: ShardLocation, options: str) -> Finding:
    remedy, command = one.fix, one.command
    if remedy is Fix.RIGHTS:
        remedy = RIGHTS
    elif isinstance(remedy, Fix):
        if not place.is_version:
            remedy = FOREIGN.get(one.code, AGAIN)
        elif is_remote(place.folder):
            remedy = RESEND
        elif place.is_indexed:
            remedy = REINDEX
        else:
            remedy = REPAIR[remedy]
            if place.repairable is not None:
                command = f"tarmac repair {shlex.quote(place.repairable)}{options}"
    return Finding(one.code, "error", str(remedy), one.where, one.evidence, command=command)
