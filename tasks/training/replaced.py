"""`replaced.rank_<r>.jsonl`: the bad samples that one rank trained without, and what stood in for them.

A line is written before its step counts as done. Steps that are done again after a resume find their lines
there already, by the position in the sequence of samples, so each is told once.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.core.files import append_line, read_lines
from tasks.loader.bad import Budget, PassedOver

logger = logging.getLogger(__name__)


class ReplacedLedger:
    """Appends to the file of a rank that goes on after `step`; `count` is of all replaced up to now.

    `is_read_here` says of a position whether this rank reads it: the files `earlier`, of all ranks, may be
    those of another number of ranks.
    """

    def __init__(
        self,
        path: Path,
        step: int,
        budget: Budget,
        earlier: Sequence[Path],
        is_read_here: Callable[[int], bool],
    ) -> None:
        self._path = path
        self._budget = budget
        lines = [line for file in earlier for line in read_lines(file)[0]]
        done = {line["position"] for line in lines if line["step"] <= step}
        self._told = {line["position"] for line in lines if line["step"] > step}
        before = sorted(filter(is_read_here, done))
        self.count = len(before)
        epoch = max(before, default=0) // budget.samples
        budget.spend(position for position in before if position // budget.samples == epoch)

    def add(self, step: int, passed_over: Sequence[PassedOver]) -> None:
        """Tell those of the batch of `step`; DataError when they are more than the budget allows."""
        for one in passed_over:
            if one.position not in self._told:
                append_line(self._path, json.dumps(_line(step, one), ensure_ascii=False))
                logger.warning("replaced by %s: %s (%s)", one.stand_in, one.defect, one.defect.reason)
        self.count += len(passed_over)
        self._budget.spend(one.position for one in passed_over)


def _line(step: int, one: PassedOver) -> dict[str, object]:
    where = dataclasses.asdict(one.defect)
    return {"step": step, "position": one.position, **where, "stand_in": one.stand_in, "at": time.time()}
