"""Is a dataset sound? Three levels, each holding the one before.

`quick` looks at the files beside the tars, and at the tars' names, sizes and end blocks, without reading one.
`default` reads every byte: a version's tars are compared with their BLAKE3, and what a seal proves is not
examined any further; tars of others are followed member by member. `full` decodes every member and applies
the modality's rules. All causes are reported, not only the first; torn files are findings, never a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from tasks.core.findings import Report
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import is_remote
from tasks.dataset.verify import foreign, version
from tasks.dataset.verify.outcome import BadSample, Outcome
from tasks.dataset.verify.place import locate
from tasks.dataset.verify.report import Advice, Coverage, Level, findings, not_seen, ruled_out
from tasks.dataset.verify.work import Work

__all__ = ["BadSample", "Level", "verify"]


def verify(
    path: Path | str,
    level: Level = "default",
    progress: Progress = no_progress,
    *,
    on_bad: Callable[[BadSample], None] | None = None,
) -> Report:
    """Judge the dataset, the version or the tars at `path`: a path, an address or a pattern.

    `on_bad` is called for every bad sample once. UsageError when there is nothing to judge, Unreachable when
    a remote store does not answer, DataError when the disk of the temporary folder is full.
    """
    place = locate(path)
    with closing(Outcome(on_bad)) as outcome:
        if place.fault is not None:
            outcome.faults.append(place.fault)
            coverage = Coverage(level, 0)
        else:
            judge = version.judge if place.is_version else foreign.judge
            coverage = judge(place, Work(level, progress), outcome)
    advice = Advice(place.is_version, is_remote(place.folder), place.repairable)
    found = findings(outcome.faults, advice)
    return Report(found, ruled_out(coverage, outcome.faults), not_seen(coverage))
