"""The stage that writes a run's report, one page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks import control
from tasks.reporting.report import is_current, read_headline, write_report
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, is_transient, shown


@dataclass(frozen=True)
class Reported:
    """The page, and its headline figure."""

    report: Path
    headline: str


@control.stage(name="report", retries=1, retry_condition_fn=is_transient)
def report(run: RunFolder) -> StageResult[Reported]:
    """Write report.html, unless the present one was made from the same evidence."""
    with shown("report") as stage:
        was_current = is_current(run)
        page = run.report if was_current else write_report(run, stage.progress)
        first = read_headline(run)
        headline = "no evaluation has a result" if first is None else str(first)
        summary = "up to date" if was_current else page.name
        return stage.result(summary, Reported(page, headline), "unchanged" if was_current else "changed")
