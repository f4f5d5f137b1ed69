"""Waits for the loader settings of a run, which its agent measures where the training will run."""

from __future__ import annotations

from dataclasses import dataclass

from tasks import control
from tasks.core.schema import Config
from tasks.core.units import counted
from tasks.loader.settings import LoaderSettings
from tasks.ownership import is_adopted, this_flow_run
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, shown
from tasks.supervision import launch, tuning
from tasks.supervision.launch import Started
from tasks.supervision.status import RunStatus


@dataclass(frozen=True)
class Tuned:
    """The settings that were measured for this flow run, if any were, and how the agent began that did so."""

    settings: LoaderSettings | None = None
    started: Started | None = None


@control.stage(name="tune")
def tune(config: Config, run: RunFolder) -> StageResult[Tuned]:
    """Settings that are there and fit the config stay; a run at work keeps the ones it started with.

    DataError with the reason when nothing can be measured.
    """
    with shown("tune") as stage:
        if (there := tuning.kept(run, config.loader)) is not None:
            return stage.result(f"kept: {_summary(there)}", Tuned(), "unchanged")
        started = launch.start_or_adopt(run, "train", control.raise_if_withdrawn, this_flow_run())
        if started.adopted and run.loader.exists():
            return stage.result("left alone: the run is at work", Tuned(), "unchanged")

        def progress(status: RunStatus) -> None:
            stage.progress(0, 0, status.reason or "measuring loader settings")

        def is_tuned(status: RunStatus) -> bool:
            return tuning.kept(run, config.loader) is not None or status.training_is_over

        adopted = is_adopted(run, started)
        launch.follow(run, is_tuned, progress)
        if (settings := tuning.kept(run, config.loader)) is None:
            launch.wait_for_training(run)  # which says why there are none
            return stage.result("left alone: the run is done", Tuned(), "unchanged")
        if adopted:
            return stage.result(
                f"measured by the run that was at work: {_summary(settings)}", Tuned(), "adopted"
            )
        return stage.result(_summary(settings), Tuned(settings, started))


def _summary(settings: LoaderSettings) -> str:
    """`2 workers: 3,410 samples/s (0 workers: 1,920)`; the reason where nothing was measured."""
    rates = {one.workers: f"{one.samples_per_s:,.0f}" for one in settings.measurements}
    if settings.workers not in rates:
        return settings.reason
    chosen = f"{counted(settings.workers, 'worker')}: {rates.pop(settings.workers)} {settings.unit}/s"
    others = ", ".join(f"{counted(workers, 'worker')}: {rate}" for workers, rate in rates.items())
    return f"{chosen} ({others})" if others else chosen
