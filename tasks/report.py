"""The report: one page about the run, and its headline in Prefect's UI."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from tasks.reporting.report import is_current, read_headline, write_report
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, is_transient, shown, tell


@task(name="report", retries=1, retry_condition_fn=is_transient, cache_policy=NO_CACHE)
def report(run: RunFolder) -> StageResult:
    """Write report.html unless the one that is there was made from the same evidence."""
    with shown("report") as stage:
        was_current = is_current(run)
        page = run.report if was_current else write_report(run, stage.progress)
        first = read_headline(run)
        says = "no evaluation has a result" if first is None else str(first)
        tell(
            create_markdown_artifact,
            f"# {run.name}\n\n**{says}**\n\n- report: `{page}`\n- model: `{run.best}`\n",
            key=f"report-{run.id}",
            description=f"Result of {run.name}",
        )
        return stage.result("up to date" if was_current else page.name, report=str(page), headline=says)
