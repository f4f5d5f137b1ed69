"""`report.html`: the results of a run on one page, for a newcomer and for an expert.

It is made from the run's folder and its dataset's version alone, by any process, at any time, also halfway
through or after a failure: a missing part is named and costs only its own section. The page records the
digest of its inputs, so that any process can check whether it is current.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from tasks.core.files import write_atomic
from tasks.core.screen import Progress, no_progress
from tasks.reporting.evidence import collect, inputs_digest
from tasks.reporting.scores import Headline, headline_of
from tasks.runs.folder import RunFolder

INPUTS = re.compile(rb'<meta name="tarmac-inputs" content="([0-9a-f]{64})">')
HEAD_BYTES = 4096
"""How much of the page is read to find its digest."""


def write_report(run: RunFolder, progress: Progress = no_progress) -> Path:
    """Write `report.html` of a run and return its path; OSError when the folder cannot be written."""
    # Imported here, because drawing a page loads libraries for a second, and `is_current` is quick without.
    from tasks.reporting.page import compose

    # Computed before anything is read: a later change makes the page out of date, not silently wrong.
    inputs = inputs_digest(run)
    progress(0, 2, "steps")
    evidence = collect(run)
    progress(1, 2, "steps")
    write_atomic(run.report, compose(evidence, inputs, time.time()))
    progress(2, 2, "steps")
    return run.report


def is_current(run: RunFolder) -> bool:
    """Whether the page was made from the current content of the run's folder; reads only the page's head."""
    try:
        with run.report.open("rb") as file:
            found = INPUTS.search(file.read(HEAD_BYTES))
    except OSError:
        return False
    return found is not None and found.group(1).decode() == inputs_digest(run)


def read_headline(run: RunFolder) -> Headline | None:
    """Return the first figure of the page alone; None before an evaluation."""
    evidence = collect(run, metrics_too=False)
    return headline_of(evidence.results, evidence.config, evidence.best_step)
