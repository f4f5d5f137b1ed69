"""Is a dataset sound? Three levels, each holding the one before.

`quick` looks at tables, names, sizes and end blocks, without reading a tar. `default` reads every byte:
checksums, tar structure, members, keys. `full` decodes every member and applies the modality's rules. All
causes are reported, not only the first; torn files are findings, never a crash. Tars that nobody has a
manifest of are judged by themselves.

Nothing is held of more than a few shards at a time; what only all of them together can tell goes through a
temporary file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from tasks.core.engines.local import map_here, map_in_threads
from tasks.core.findings import Finding, Report
from tasks.core.process import available_cores
from tasks.core.screen import Progress, no_progress
from tasks.core.stores import is_remote
from tasks.dataset.verify import foreign_tars, own_version
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.inside import inspect
from tasks.dataset.verify.locate import Place, locate
from tasks.dataset.verify.outcome import Outcome
from tasks.dataset.verify.records import BadSample, Inside, Task
from tasks.dataset.verify.reporting import advised, in_doubt, merged
from tasks.dataset.verify.ruling import Level, Seen, not_seen, ruled_out

__all__ = ["BadSample", "Level", "verify"]

WORTH_PROCESSES_BYTES = {"default": 5_000_000_000, "full": 100_000_000}
"""Below this, starting worker processes (0.7 s) costs more than it saves; decoding is slower than hashing."""
MOST_THREADS = 4
"""Hashing leaves the interpreter to other threads, and structure takes a quarter of the time that it does."""


def verify(
    path: Path | str,
    level: Level = "default",
    progress: Progress = no_progress,
    *,
    on_bad: Callable[[BadSample], None] | None = None,
) -> Report:
    """Judge the dataset, the version or the tars at `path`: a path, an address or a pattern.

    `on_bad` is told of every bad sample once. UsageError when there is nothing to judge, Unreachable when a
    remote store does not answer.
    """
    place = locate(path)
    if place.problem is not None:
        return _report(place, [place.problem], Seen(level, 0))

    def look_inside(tasks: Iterator[Task], sizes: Mapping[str, int]) -> None:
        _look_inside(tasks, sizes, level, progress, outcome)

    judge = own_version.judge if place.is_version else foreign_tars.judge
    with Beside(place.folder) as files, closing(Outcome(on_bad)) as outcome:
        found, seen = judge(place, files, level, look_inside, outcome)
    return _report(place, found, seen)


def _look_inside(
    tasks: Iterator[Task], sizes: Mapping[str, int], level: Level, progress: Progress, outcome: Outcome
) -> None:
    """Read the shards of the tasks, whose sizes are given by name, each once."""
    in_hand: dict[str, Task] = {}

    def handed_over() -> Iterator[Task]:
        for task in tasks:
            in_hand[task.name] = task
            yield task

    for done, inside in enumerate(_map(handed_over(), sum(sizes.values()), level), 1):
        outcome.take(in_hand.pop(inside.name), inside)
        progress(done, len(sizes), "shards")


def _map(tasks: Iterator[Task], size_bytes: int, level: Level) -> Iterable[Inside]:
    cores = available_cores()
    is_much = size_bytes >= WORTH_PROCESSES_BYTES[level]
    leaves_interpreter = level != "full"  # which decoders hold
    if is_much and cores > (MOST_THREADS if leaves_interpreter else 1):
        return map_here(inspect, tasks, cores)
    if leaves_interpreter and cores > 1:
        return map_in_threads(inspect, tasks, min(cores, MOST_THREADS))
    return map(inspect, tasks)


def _report(place: Place, findings: Iterable[Finding], seen: Seen) -> Report:
    told = advised(merged(findings), place.repaired, place.is_version, is_remote(place.folder))
    return Report(told, ruled_out(seen, in_doubt(told)), not_seen(seen))
