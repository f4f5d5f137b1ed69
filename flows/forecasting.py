"""What `tarmac plan` says: what a build would do, and what is left of the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.files import require_writable
from tasks.core.units import count, counted, duration, size
from tasks.dataset.quarantine import NAME, Entry, home, notice, of_version, read
from tasks.runs.doubts import doubts, doubts_of


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


@dataclass(frozen=True)
class TrainingLeft:
    """What is left of the training, whether anything is, and what of it is most likely a mistake."""

    told: str
    is_left: bool = True
    doubts: Sequence[str] = ()


def training_left(settings: Any, version: str | None) -> TrainingLeft | None:
    """None without a train block. UsageError for runs that cannot be written, and for evaluations that could
    not be done."""
    if settings.train is None:
        return None
    if version is None:
        require_writable(settings.runs, "runs")
        told = f"{settings.train.recipe}, after the build{_place()}"
        return TrainingLeft(told, doubts=tuple(doubts_of(settings)))
    from tasks.core.config import dump
    from tasks.evaluation.fit import require_fit
    from tasks.runs.plan import locate, require_checkpoints, resolve
    from tasks.supervision.status import look

    folder = _version(settings, version)
    require_fit(settings, folder)
    run, resolved = locate(settings, folder), resolve(settings, folder)
    doubted = tuple(doubts(resolved, folder))
    if not run.record.exists():
        require_writable(settings.runs, "runs")
        return TrainingLeft(f"a new run, {run.name}{_place()}", doubts=doubted)
    require_checkpoints(run, resolved)
    seen = look(run)
    if seen.is_complete and run.config.read_text(encoding="utf-8") == dump(resolved):
        return TrainingLeft(f"up to date: {run.name}", is_left=False)
    return TrainingLeft(f"goes on: {run.name}, {seen.state}{_place()}", doubts=doubted)


def _place() -> str:
    """That a training takes one GPU where there are more."""
    from tasks.runs.jobs import gpus_here

    gpus = gpus_here()
    return f", on one of {gpus} GPUs and its evaluations on another" if gpus > 1 else ""
