"""A pilot beside a long build: a few samples spread over all, through every step and every check.

A wrong column, a wrong scale or a wrong folder spoils every sample; fifty of them show it in seconds, and a
page shows a person what the dataset will look like before the hours are spent. The pilot runs in a process of
its own while the first shards are converted; the price is that those are converted for nothing when it stops
the build.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from pathlib import Path
from threading import Event, Thread

from tasks.core.engines import map_here
from tasks.core.schema import Config, ShardRules
from tasks.dataset.build.catalogue import Leaf
from tasks.dataset.build.pilot_task import Pilot, Trial
from tasks.dataset.build.rejects import Budget
from tasks.dataset.build.spread import spread

SAMPLES = 50
WORTH_SAMPLES = 2000
"""Of fewer, a pilot would be much of the build."""
PATIENCE_S = 10.0
"""A build on this machine that is done by then is its own pilot."""
NICE = 10


@contextmanager
def beside(config: Config, staging: Path, missing: Sequence[Leaf], budget: Budget) -> Iterator[Trial]:
    """While the block runs, convert, verify and show SAMPLES samples of the `missing` leaves, when these hold
    WORTH_SAMPLES or more and, on this machine, take more than PATIENCE_S; the block's end waits for it.

    DataError, at the block's end at the latest, when so many samples are rejected that the budget cannot
    hold, or when a check fails. The future tells it as soon as it is known.
    """
    trial = Trial()
    to_convert = sum(leaf.samples for leaf in missing)
    if to_convert < WORTH_SAMPLES:
        trial.set_result(None)
        yield trial
        return
    few = config.model_copy(
        update={"dataset": config.dataset.model_copy(update={"shard": ShardRules(samples=SAMPLES)})}
    )
    pilot = Pilot(few, staging, spread(missing, SAMPLES), deepcopy(budget), to_convert)
    if config.engine.build.kind != "local":
        trial.set_running_or_notify_cancel()  # a cluster, which may want to have all work first, waits for it
    ended = Event()
    thread = Thread(target=_try, args=(pilot, trial, ended))
    thread.start()
    try:
        yield trial
    finally:
        ended.set()
        thread.join()
    trial.result()


def _try(pilot: Pilot, trial: Trial, ended: Event) -> None:
    """Run the pilot in a process of its own, unless the block has `ended` before."""
    if not trial.running():
        if ended.wait(PATIENCE_S):
            trial.set_result(None)
            return
        trial.set_running_or_notify_cancel()
    try:
        with closing(map_here(run, [pilot], 1)) as results:
            (page,) = results
    except BaseException as error:  # noqa: BLE001 - for whoever waits
        trial.set_exception(error)
    else:
        trial.set_result(page)


def run(pilot: Pilot) -> Path | None:
    """Convert, verify and show, with what the build's workers leave of the cores; DataError."""
    os.nice(NICE)
    from tasks.dataset.build import trial  # not above: workers would wait for what draws pages

    return trial.run(pilot)
