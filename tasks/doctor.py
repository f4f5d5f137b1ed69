"""The examination of a run that hangs or is slow, for Prefect's page."""

from __future__ import annotations

from dataclasses import dataclass

from prefect.artifacts import create_markdown_artifact

from tasks import control
from tasks.core import screen
from tasks.diagnosis.examination import Examination, text_of
from tasks.diagnosis.run_doctor import examine_run
from tasks.runs.folder import RunFolder
from tasks.stage import StageResult, artifact_key, shown, tell
from tasks.supervision.status import config_of


@dataclass(frozen=True)
class DoctorResult:
    """The codes of what was found."""

    found: tuple[str, ...]


@control.stage(name="doctor")
def examine(run: RunFolder) -> StageResult[DoctorResult]:
    """Examine a run on this machine; the text is in an artifact, each cause is a warning in the log. Of
    private data there are codes only, because a log that is quoted may name samples."""
    with shown("doctor") as stage:
        done = examine_run(run)
        is_private = config_of(run).dataset.private
        findings = done.verdict.report.findings
        for finding in findings:
            if finding.severity != "info":
                screen.warn(finding.code if is_private else "\n".join(finding.lines()))
        sentence = f"{done.verdict.state}: {_codes(done)}" if is_private else done.verdict.sentence
        key = artifact_key("doctor", run.id)
        page = _withheld(run, done) if is_private else _page(run, done)
        tell(create_markdown_artifact, page, key=key, description=sentence)
        return stage.result(sentence, DoctorResult(tuple(finding.code for finding in findings)))


def _codes(done: Examination) -> str:
    return ", ".join(finding.code for finding in done.verdict.report.findings) or "nothing was found"


def _page(run: RunFolder, done: Examination) -> str:
    from tasks.reporting.summary import quoted  # imports what draws pages

    return "\n".join([f"# {run.name}", "", *quoted(list(text_of(done)))])


def _withheld(run: RunFolder, done: Examination) -> str:
    where = f"Private data; on the run's machine `tarmac doctor --run {run.handle}` shows the whole."
    return f"# {run.name}\n\n**{_codes(done)}**\n\n{where}"
