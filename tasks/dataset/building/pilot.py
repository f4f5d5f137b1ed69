"""A pilot beside a long build: a few samples spread over all, through every step and every check.

A wrong column, a wrong scale or a wrong folder spoils every sample; fifty of them show it in seconds, and a
page shows a person what the dataset will look like before the hours are spent. The pilot runs in a process of
its own while the first shards are converted, so it costs a build no time; the price is that those are
converted for nothing when it stops the build.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from copy import deepcopy
from pathlib import Path

from tasks.core.engines import map_here
from tasks.core.progress import Progress
from tasks.core.schema import Config, ShardRules
from tasks.dataset.building.catalogue import Leaf
from tasks.dataset.building.pilot_task import Pilot
from tasks.dataset.building.rejects import Budget
from tasks.dataset.building.spread import spread

SAMPLES = 50
WORTH_SAMPLES = 2000
"""A shorter build is its own pilot."""
NICE = 10


@contextmanager
def beside(
    config: Config, staging: Path, missing: Sequence[Leaf], budget: Budget, progress: Progress
) -> Iterator[Future[None]]:
    """While the block runs, convert, verify and show SAMPLES samples of the `missing` leaves, when these hold
    WORTH_SAMPLES or more; the block's end waits for it.

    The future raises DataError when so many of them are rejected that the budget cannot hold, or when a check
    fails. The page is pilot_task.PAGE in the dataset's folder.
    """
    to_convert = sum(leaf.samples for leaf in missing)
    if to_convert < WORTH_SAMPLES:
        nothing: Future[None] = Future()
        nothing.set_result(None)
        yield nothing
        return
    progress(0, to_convert, "samples; beside a pilot of a few")
    few = config.model_copy(
        update={"dataset": config.dataset.model_copy(update={"shard": ShardRules(samples=SAMPLES)})}
    )
    pilot = Pilot(few, staging, spread(missing, SAMPLES), deepcopy(budget), to_convert)
    with ThreadPoolExecutor(1) as thread:
        yield thread.submit(_in_a_process, pilot)


def _in_a_process(pilot: Pilot) -> None:
    with closing(map_here(run, [pilot], 1)) as results:
        for _ in results:
            pass


def run(pilot: Pilot) -> None:
    """Convert, verify and show, with what the build's workers leave of the cores; DataError."""
    os.nice(NICE)
    from tasks.dataset.building import trial  # not above: workers would wait for what draws pages

    trial.run(pilot)
