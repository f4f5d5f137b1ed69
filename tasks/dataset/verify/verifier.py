"""Is a dataset sound? Verify answers at three levels, each of which includes the one before.

`quick` checks the files beside the tars, and the names, sizes and end blocks of the tars, without reading
them. `default` reads every byte: it compares a version's tars with their BLAKE3, and does not examine what a
seal proves any further; it follows tars of others member by member. `full` decodes every member and applies
the modality's rules. All causes are reported, not only the first; torn files are findings, never a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from tasks.core.findings import Report
from tasks.core.screen import Progress, no_progress
from tasks.dataset.verify import foreign, version
from tasks.dataset.verify.examination import BadSample, ShardExamination
from tasks.dataset.verify.findings import Coverage, Level, findings, not_seen, ruled_out
from tasks.dataset.verify.place import locate

__all__ = ["BadSample", "Level", "verify", "verify_version"]


def verify(
    path: Path | str,
    level: Level = "default",
    progress: Progress = no_progress,
    *,
    on_bad: Callable[[BadSample], None] | None = None,
) -> Report:
    """Judge the dataset, the version or the tars at `path`: a path, an address or a pattern.

    `on_bad` is called once for every bad sample. UsageError when there is nothing to judge, StoreUnreachable
    when a remote store does not answer, DataError when the disk of the temporary folder is full.
    """
    place = locate(path)
    with closing(ShardExamination(level, progress, on_bad)) as outcome:
        if place.fault is not None:
            outcome.faults.append(place.fault)
            coverage = Coverage(level, 0)
        elif place.is_version:
            coverage = version.examine_version(place.folder, outcome)
        else:
            coverage = foreign.examine_foreign_tars(place, outcome)
    return Report(findings(outcome.faults, place), ruled_out(coverage, outcome.faults), not_seen(coverage))


def verify_version(version: Path, progress: Progress = no_progress) -> Report:
    """Report whether a version may be trained on, by verifying its folder at the default level.

    Findings become warnings where every bad sample is set aside in the quarantine, because training leaves
    these samples out. Errors as in `verify`; DataError for a torn quarantine.
    """
    from tasks.dataset import quarantine  # it imports numpy, which `verify` can do without

    bad: list[BadSample] = []
    report = verify(version, "default", progress, on_bad=bad.append)
    if report.ok:
        return report
    listed = quarantine.read_quarantine(quarantine.home(version) / quarantine.NAME)
    aside = {(entry.shard, entry.key) for entry in quarantine.of_version(version, listed)}
    shards = {one.shard for one in bad}
    are_aside = aside.issuperset((one.shard, one.key) for one in bad)
    if not are_aside or any(found.where.get("shard") not in shards for found in report.findings):
        return report
    return replace(report, findings=[replace(found, severity="warning") for found in report.findings])
