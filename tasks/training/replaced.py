"""`replaced.rank_<r>.jsonl`: the bad samples that one rank trained without, and what stood in for them.

A line is written before its step counts as done. Steps that are done again after a resume find their lines
there already, by the position in the sequence of samples, so each is told once.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from tasks.core.files import append_line, read_lines
from tasks.loader.bad import Budget, PassedOver

logger = logging.getLogger(__name__)


class ReplacedLedger:
    """Appends to the file of a rank that goes on after `step`; `count` is of all replaced up to now."""

    def __init__(self, path: Path, step: int, budget: Budget) -> None:
        self._path = path
        self._budget = budget
        lines, _ = read_lines(path)
        before = [line["position"] for line in lines if line["step"] <= step]
        self._told = {line["position"] for line in lines if line["step"] > step}
        self.count = len(before)
        epoch = max(before, default=0) // budget.samples
        budget.spend(sorted(position for position in before if position // budget.samples == epoch))

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
