"""Reports what a fine-tuning has lost, as soon as its evaluations show it; once for each task."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.evaluation.forgetting import forgotten
from tasks.runs.folder import RunFolder
from tasks.runs.run_findings import read_findings
from tasks.supervision.evaluating.result_files import result_of

logger = logging.getLogger(__name__)


class Forgetfulness:
    """Compares the evaluations of one run with those of its step 0, for its agent, which polls often."""

    def __init__(self, run: RunFolder, config: Config) -> None:
        self._run, self._config = run, config
        self._evaluated: int | None = None
        """The number of evaluations at the last look."""

    def look(self, evaluated: int) -> Sequence[Finding]:
        """Return what is new where the number of evaluations has changed."""
        steps = self._config.evaluated_steps
        if evaluated == self._evaluated or 0 not in steps or self._config.evaluate is None:
            return ()
        self._evaluated = evaluated
        wanted = [(step, task.name) for step in steps for task in self._config.evaluate.tasks]
        results = [one for key in wanted if (one := result_of(self._run.evaluation(*key))) is not None]
        known = {(line.get("code"), str(line.get("where"))) for line in read_findings(self._run)}
        found = [new for new in forgotten(results, steps[-1]) if (new.code, str(new.where)) not in known]
        for new in found:
            logger.warning("%s", "\n".join(new.lines()))
        return found
