"""What `tarmac plan` says: what a build would do, and what is left of the training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.core.formats import count, counted, duration, size
from tasks.dataset.quarantine import NAME, Entry, home, notice, of_version, read


def build_lines(settings: Any, told: Any) -> Iterator[str]:
    if told.up_to_date is not None:
        yield f"build     up to date: version {told.up_to_date}"
        if skipped := notice(_version(settings, told.up_to_date), left_out(settings, told.up_to_date)):
            yield f"!         {skipped}"
        return
    yield f"build     {told.why}"
    if told.work is None:
        needed = 2 * told.read_bytes
        yield (
            f"          reads {counted(told.containers, 'container')} in order, {size(told.read_bytes)}; "
            "how many samples they hold shows then"
        )
    else:
        needed = told.work.bytes
        yield from _work_lines(settings, told.work)
    mark = "!" if needed > told.free_bytes else " "
    room = f"{size(needed)} of {size(told.free_bytes)} free on the disk of {settings.dataset.output}"
    yield f"{mark}         {room}"


def left_out(settings: Any, version: str | None) -> list[Entry]:
    """What trainings on the dataset's version do without; nothing where it is yet to be built."""
    if version is None:
        return []
    folder = _version(settings, version)
    return of_version(folder, read(home(folder) / NAME))


def _version(settings: Any, name: str) -> Path:
    path: Path = settings.dataset.output / "versions" / name
    return path


def _work_lines(settings: Any, work: Any) -> Iterator[str]:
    yield (
        f"          {count(work.listed)} raw samples: {count(work.filtered)} filtered, "
        f"{count(sum(work.rejected.values()))} rejected without a look inside"
    )
    time_needed = _time(settings.engine.for_build(), work.seconds)
    yield (
        f"          {count(work.to_convert)} to convert into {count(work.to_convert_shards)} of "
        f"{count(work.shards)} shards: about {size(work.bytes)}, {time_needed}"
    )
    for reason, example in work.tried_rejects.items():
        shown = "" if settings.dataset.private else f"   {example}"
        yield f"!         of {counted(work.tried, 'sample')} tried: {reason}{shown}"
    if work.stops is not None:
        yield f"!         the build would stop: {work.stops}"


def _time(engine: Any, seconds: float) -> str:
    """How long the engine takes for what one process does in so many seconds."""
    if engine.kind == "dask":
        return f"{duration(seconds)} of work for the Dask cluster"
    jobs = engine.jobs or 4 if engine.kind == "slurm" else 1
    workers = jobs * (engine.workers or engine.cpus or 1)
    return f"{duration(max(seconds / workers, 1))} with {counted(workers, 'worker')}"


def training_left(settings: Any, version: str | None) -> str | None:
    """What is left of the training; None without a train block."""
    if settings.train is None:
        return None
    if version is None:
        return f"{settings.train.recipe}, after the build"
    from tasks.runs.plan import locate
    from tasks.supervision.status import look

    run = locate(settings, _version(settings, version))
    if not run.record.exists():
        return f"a new run, {run.name}"
    seen = look(run)
    return f"up to date: {run.name}" if seen.is_complete else f"goes on: {run.name}, {seen.state}"
