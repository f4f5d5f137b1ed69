"""The stage that says what a version's samples are worth: copies, leaks, pictures and captions that teach
nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect.artifacts import create_table_artifact

from tasks import control
from tasks.core.errors import DataError, TarmacError, Withdrawn, first_line
from tasks.core.findings import Finding, Severity
from tasks.core.schema import Config
from tasks.core.units import counted
from tasks.dataset.quality.assessment import ASSESSMENT
from tasks.dataset.quality.verdict import Terms, lines_of, version_findings
from tasks.stage import StageResult, artifact_key, best_effort, shown

EXAMINE = "tasks.dataset.quality.examine:assess_version"


@dataclass(frozen=True)
class Assessed:
    """What was found of a version's samples, errors first."""

    findings: Sequence[Finding]


@control.stage(name="assess")
def assess(config: Config, version: Path) -> StageResult[Assessed]:
    """Assess a version. That it cannot be assessed is no error of the data, which is verified."""
    is_private = config.dataset.private
    with shown("assess") as stage:
        try:
            answer = stage.call(EXAMINE, {"version": str(version)}, is_private)
        except Withdrawn:
            raise
        except TarmacError as error:
            return stage.result(f"not assessed: {first_line(error)}", Assessed(()), "unchanged")
        findings = version_findings(version, ASSESSMENT.validate_python(answer), Terms.of(config))
        best_effort(
            create_table_artifact,
            [{"severity": one.severity, "code": one.code, **one.where, **one.evidence} for one in findings],
            key=artifact_key("quality", config.name),
            description=f"What the samples of {config.dataset.output} are worth",
        )
        return stage.result(_summary(findings), Assessed(findings), "unchanged")


def require_trainable(findings: Sequence[Finding]) -> None:
    """DataError with the errors among the findings: a training would be scored on what it has seen."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        raise DataError(
            "\n".join(["the version is current, but nothing was trained on it", *lines_of(errors)])
        )


def _summary(findings: Sequence[Finding]) -> str:
    counts = Counter(finding.severity for finding in findings)
    if not counts:
        return "found no copies, leaks, or samples that teach nothing"
    kinds: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
    return ", ".join(counted(counts[kind], word) for kind, word in kinds.items() if counts[kind])
