"""Removes the checkpoints that `train.keep` does not ask for, as the run's agent does while it trains.

One that is needed stays: the newest, from which a training resumes; the best; and any that an evaluation
reads, is yet to read, or failed to read. A checkpoint leaves its name first, so nobody meets half of one.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection

from tasks.core.files import fsync_path
from tasks.core.schema import Config
from tasks.evaluation import best
from tasks.runs.checkpoints import Checkpoint, list_checkpoints
from tasks.runs.folder import RunFolder

GONE = ".gone_"
logger = logging.getLogger(__name__)


class Pruner:
    """The checkpoints of one run, in the hands of its agent."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        self._run, self._config = run, config
        self._done: tuple[list[int], frozenset[int]] | None = None
        """The checkpoints that were there when all was removed, and those that were open then."""

    def prune(self, open_steps: Collection[int]) -> None:
        """Remove what is neither kept nor among the steps that evaluations are still open for."""
        train = self._config.train
        if train is None or train.keep is None:
            return
        found = list_checkpoints(self._run)
        state = [one.step for one in found], frozenset(open_steps)
        if state == self._done:
            return
        for leftover in self._run.checkpoints.glob(f"{GONE}*"):
            shutil.rmtree(leftover)
        going = superfluous(self._run, self._config, found, open_steps)
        for checkpoint in going:
            hidden = checkpoint.path.with_name(GONE + checkpoint.path.name)
            os.rename(checkpoint.path, hidden)
            fsync_path(hidden.parent)
            shutil.rmtree(hidden)
            logger.info("removed %s, by train.keep", checkpoint.path.name)
        self._done = [one.step for one in found if one not in going], state[1]


def superfluous(
    run: RunFolder, config: Config, found: list[Checkpoint], open_steps: Collection[int]
) -> list[Checkpoint]:
    """Return which of a run's checkpoints, given by step, `train.keep` does not ask for."""
    assert config.train is not None and config.train.keep is not None
    keep = config.train.keep
    further = best.links_of(run, config)
    kept = {one.step for one in found[-keep.latest :]}
    for each in (best.ranked(run, config), *(ordered for _, ordered in further)):
        kept |= {one.step for one in each[: keep.best]}
    links = (run.latest, run.best, *(link for link, _ in further))
    linked = {link.readlink().name for link in links if link.is_symlink()}
    return [
        one
        for one in found
        if one.step not in kept
        and one.step not in open_steps
        and one.path.name not in linked
        and (keep.every is None or one.step % keep.every or one.step == 0)
    ]
