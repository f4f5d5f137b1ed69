"""The stage that examines a run that hangs or is slow, for Prefect's page."""

from __future__ import annotations

from dataclasses import dataclass

from prefect.artifacts import create_markdown_artifact

from tasks import control
from tasks.core import screen
from tasks.diagnosis.examination import text_of
from tasks.diagnosis.run_doctor import examine_run
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, artifact_key, best_effort, shown
from tasks.supervision.status import config_of


@dataclass(frozen=True)
class DoctorResult:
    """The codes of the findings."""

    found: tuple[str, ...]


@control.stage(name="doctor")
def examine(run: RunFolder) -> StageResult[DoctorResult]:
    """Examine a run on this machine; the text is in an artifact, each cause is a warning in the log. For
    private data it shows codes only: a quoted log may name samples."""
    with shown("doctor") as stage:
        done = examine_run(run)
        is_private = config_of(run).dataset.private
        findings = done.verdict.report.findings
        for finding in findings:
            if finding.severity != "info":
                screen.warn(finding.code if is_private else "\n".join(finding.lines()))
        codes = tuple(finding.code for finding in findings)
        if is_private:
            named = ", ".join(codes) or "nothing was found"
            sentence = f"{done.verdict.state}: {named}"
            where = f"Private data; on the run's machine `tarmac doctor --run {run.handle}` shows the whole."
            page = f"# {run.name}\n\n**{named}**\n\n{where}"
        else:
            from tasks.reporting.summary import quoted  # imports what draws pages

            sentence = done.verdict.sentence
            page = "\n".join([f"# {run.name}", "", *quoted(list(text_of(done)))])
        best_effort(create_markdown_artifact, page, key=artifact_key("doctor", run.id), description=sentence)
        return stage.result(sentence, DoctorResult(codes))
