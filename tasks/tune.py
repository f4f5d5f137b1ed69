"""The stage that waits for a run's loader settings, which its agent measures where the training will run."""

from __future__ import annotations

from dataclasses import dataclass

from tasks import control, ownership
from tasks.core.schema import Config
from tasks.core.units import counted, number, percent
from tasks.loader.settings import LoaderSettings
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, shown
from tasks.supervision import launch
from tasks.supervision.attempt import tuning
from tasks.supervision.launch import Started
from tasks.supervision.status import RunStatus


@dataclass(frozen=True)
class Tuned:
    """The settings that were measured for this flow run, if any were, and how the agent was started that
    measured them."""

    settings: LoaderSettings | None = None
    started: Started | None = None


@control.stage(name="tune")
def tune(config: Config, run: RunFolder) -> StageResult[Tuned]:
    """Measure loader settings, unless there are some that fit the config. A training that is running keeps
    the settings it started with.

    DataError with the reason when nothing can be measured.
    """
    with shown("tune") as stage:
        if (there := tuning.kept(run, config.loader)) is not None:
            return stage.result(f"kept: {_summary(there)}", Tuned(), "unchanged")
        started = ownership.start_or_adopt(run, "train")
        if started.adopted and run.loader.exists():
            return stage.result("left alone: the run is at work", Tuned(), "unchanged")

        def progress(status: RunStatus) -> None:
            stage.progress(0, 0, status.reason or "measuring loader settings")

        def is_tuned(status: RunStatus) -> bool:
            return tuning.kept(run, config.loader) is not None or status.training_is_over

        adopted = ownership.is_adopted(run, started)
        launch.follow(run, is_tuned, progress)
        if (settings := tuning.kept(run, config.loader)) is None:
            launch.wait_for_training(run)  # which raises the reason if the training failed
            return stage.result("left alone: the run is done", Tuned(), "unchanged")
        summary = _summary(settings)
        if adopted:
            return stage.result(f"measured by the run that was at work: {summary}", Tuned(), "adopted")
        return stage.result(summary, Tuned(settings, started))


def _summary(settings: LoaderSettings) -> str:
    """Return such as `2 workers: 3,410 samples/s, enough for the 640 that the training takes, of which it
    reaches 97 % (0 workers: 1,920, which it would wait for)`; the reason if nothing was measured."""
    rates = {one.workers: one.samples_per_s for one in settings.measurements}
    if settings.workers not in rates:
        return settings.reason
    given, taken = rates.pop(settings.workers), settings.taken_per_s
    chosen = f"{counted(settings.workers, 'worker')}: {given:,.0f} {settings.unit}/s"
    if taken is not None:
        is_enough = "enough" if given >= taken else "not enough"
        chosen += f", {is_enough} for the {number(taken, 2)} that the training takes"
    if settings.reached_share is not None:
        chosen += f", of which it reaches {percent(settings.reached_share, 0)}"
    others = [f"{counted(workers, 'worker')}: {rate:,.0f}" for workers, rate in rates.items()]
    if 0 in rates and taken is not None:
        others[list(rates).index(0)] += ", which it would wait for"
    return f"{chosen} ({', '.join(others)})" if others else chosen
