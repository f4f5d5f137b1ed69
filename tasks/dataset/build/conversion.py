"""All planned shards through the engine, against the budget of rejects."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.core.engines import map_groups
from tasks.core.screen import Progress
from tasks.core.schema import Config
from tasks.dataset.build.convert import Conversion, convert
from tasks.dataset.build.pilot_task import Trial
from tasks.dataset.build.rejects import Budget

NOTE = "samples"
JOBS = "jobs"


class Exceeded(Exception):
    """There are more rejects than the budget has room for."""


@dataclass
class Tally:
    """The samples that are done, of all that were accepted, and the leaves that hold rejects."""

    budget: Budget
    total: int
    done: int = 0
    rejecting: list[int] = field(default_factory=list)

    def add(self, leaf: int, samples: int, rejects: Mapping[str, int]) -> None:
        self.done += samples
        self.budget.add(rejects)
        if rejects:
            self.rejecting.append(leaf)


@dataclass(frozen=True, slots=True)
class Finished:
    """A leaf that has been converted, the number of its samples and the rejects among them by reason."""

    ordinal: int
    samples: int
    rejects: Mapping[str, int]


def finish(task: Conversion) -> Finished:
    """Convert one leaf."""
    done = convert(task)
    return Finished(task.ordinal, done.samples, done.rejects)


def convert_all(
    config: Config,
    staging: Path,
    rules: str,
    leaves: Sequence[int],
    tally: Tally,
    trial: Trial,
    progress: Progress,
) -> Generator[int, None, None]:
    """Convert these leaves of the catalogue in `staging` and yield each that is done.

    Exceeded as soon as that is certain; raises what the `trial`, the build's pilot, has raised.
    """

    def say(text: str) -> None:
        progress(tally.done, tally.total, f"{NOTE}; {text}")

    work = _work(staging, rules, leaves, trial)
    for one in map_groups(finish, work, config.engine, folder=staging / JOBS, say=say):
        tally.add(one.ordinal, one.samples, one.rejects)
        progress(tally.done, tally.total, NOTE + _told(trial))
        if tally.budget.is_exceeded:
            _heed(trial)  # which tells more of what spoils all samples
            raise Exceeded  # which ends the map: the shards in hand are finished, no more are begun
        yield one.ordinal


def _work(staging: Path, rules: str, leaves: Sequence[int], trial: Trial) -> Iterator[Conversion]:
    """What is to be done; an engine that takes it bit by bit begins while the trial runs, or before it does;
    one that must have all of it first waits for the trial."""
    for ordinal in leaves:
        if trial.done():
            trial.result()
        yield Conversion(staging, rules, ordinal)
    _heed(trial)


def _told(trial: Trial) -> str:
    if trial.running():
        return "; beside a pilot of a few"
    page = None if not trial.done() or trial.exception() else trial.result()
    return "" if page is None else f"; a first look: {page}"


def _heed(trial: Trial) -> None:
    """Raise what a trial that has begun raises, at its end."""
    if trial.running() or trial.done():
        trial.result()
