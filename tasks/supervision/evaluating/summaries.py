"""The summaries of a run's evaluations: `eval_results/step_N.json` in nanoVLM's form, for each step whose
evaluations are all final; and their copies where another trainer looks for them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tasks.core.files import read_json, write_json
from tasks.core.schema import Config
from tasks.evaluation import results
from tasks.evaluation.expected import WantedEvaluation
from tasks.runs import metrics
from tasks.runs.folder import RunFolder
from tasks.supervision.evaluating.result_files import UnusableResults, result_of

logger = logging.getLogger(__name__)


class Summaries:
    """The summaries of one run, in the hands of its agent."""

    def __init__(self, run: RunFolder, config: Config, unusable: UnusableResults) -> None:
        self._run = run
        self._copies = None if config.evaluate is None else config.evaluate.results_dir
        self._unusable = unusable
        self.written = 0
        """How often `eval_results/` has changed by this agent."""

    def write(self, step: int, answered: Collection[WantedEvaluation]) -> None:
        """Write that of a step from the results of the evaluations that are `answered`."""
        values: dict[str, float] = {}
        for want in answered:
            result = result_of(self._run.evaluation(*want.key))
            if result is not None:
                values |= {
                    results.full_name(want.task, name): value for name, value in result.metrics.items()
                }
        summary = {"global_step": step, "results": metrics.finite(values)}
        path = self._run.eval_result(step)
        if not self._unusable.is_summary(path) or read_json(path) != summary:
            write_json(path, summary)
            self.written += 1
        if self._copies is not None:
            _copy(path, self._copies, summary)


def _copy(path: Path, folder: Path, summary: dict[str, Any]) -> None:
    """Write the summary where a trainer looks for it, too, unless it is there."""
    theirs = folder / path.name
    try:
        if not theirs.exists() or theirs.read_bytes() != path.read_bytes():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(theirs, summary)
    except OSError as error:  # which is no reason to evaluate anything again
        logger.warning("evaluate.results_dir: %s cannot be written: %s", theirs, error)
