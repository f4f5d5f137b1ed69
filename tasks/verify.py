"""The stages that check a version before anyone trains on it, and any dataset when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prefect import get_run_logger
from prefect.artifacts import create_table_artifact

from tasks import control
from tasks.core.errors import DataError, TarmacError
from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.core.stores import redact
from tasks.core.units import counted, when
from tasks.dataset.verify import remembered
from tasks.dataset.verify.findings import Level
from tasks.dataset.version import versions
from tasks.dataset.version.build_info import read_build_info
from tasks.stage import StageResult, artifact_key, best_effort, is_transient, shown

KEYS = ("key", "member")
"""The parts of a place that may name a person."""
ROWS = 200
"""At most this many findings are in the table and in the log."""
LINES = 10
"""At most this many findings are in the message of the failed state."""


@dataclass(frozen=True)
class Verified:
    """The version, which is sound except for what is in quarantine."""

    version: Path


@control.stage(name="verify", retries=1, retry_condition_fn=is_transient)
def verify(config: Config, version: Path) -> StageResult[Verified]:
    """Check of a new version what was not found sound before. DataError with its findings, for private data
    without keys, when it is not sound; samples in quarantine are no error."""
    with shown("verify") as stage:
        if (seen := remembered.found_sound(version, "default")) is not None:
            how = f"sound, as verified {when(seen.at)} at level {seen.level}"
            return stage.result(f"{version.name}: {how}", Verified(version), "unchanged")
        report = stage.call(
            "tasks.dataset.verify.verifier:verify_version", {"version": str(version)}, config.dataset.private
        )
        findings = [Finding(**entry) for entry in report["findings"]]
        errors = [finding for finding in findings if finding.severity == "error"]
        if errors:
            hidden = KEYS if config.dataset.private else ()
            lines = []
            for error in errors[:20]:
                place = " ".join(str(value) for name, value in error.where.items() if name not in hidden)
                lines.append(f"  {error.code} {place}: {error.remedy}")
            raise _not_sound(str(version), errors, lines)
        verdict = "sound except for what is in quarantine" if findings else "sound"
        return stage.result(f"{version.name}: {verdict}", Verified(version), "unchanged")


@control.stage(name="verify", retries=1, retry_condition_fn=is_transient)
def examine(dataset: str, level: Level, again: bool = True) -> StageResult[None]:
    """Check a dataset, a version or tars; not `again` what was found sound before at this level. The findings
    go to the run's log and into a table, without keys if the data may be private. DataError when it is not
    sound."""
    with shown("verify") as stage:
        is_private = _may_be_private(dataset)
        arguments = {"path": dataset, "level": level}
        how = "verify" if again else "verify_anew"
        report = stage.call(f"tasks.dataset.verify.verifier:{how}", arguments, is_private)
        findings = [Finding(**entry) for entry in report["findings"]]
        if is_private:
            findings = [_without_keys(finding) for finding in findings]
        best_effort(
            create_table_artifact,
            [_row(finding) for finding in findings[:ROWS]],
            key=artifact_key("verify", dataset),
            description=f"{counted(len(findings), 'finding')} in {redact(dataset)} at level {level}",
        )
        lines = ["\n".join(finding.lines()) for finding in findings[:ROWS]]
        if any(finding.severity == "error" for finding in findings):
            for line in lines:
                get_run_logger().error("%s", line)
            raise _not_sound(redact(dataset), findings, lines[:LINES])
        unseen = f"; not looked at: {', '.join(report['not_seen'])}" if report["not_seen"] else ""
        return stage.result(f"{redact(dataset)} is sound at level {level}{unseen}", None)


def _not_sound(name: str, findings: Sequence[Finding], lines: Sequence[str]) -> DataError:
    """Return the error for the findings of which `lines` show the first; it ends with the commands to run."""
    steps = dict.fromkeys(f"  next: {finding.command}" for finding in findings if finding.command)
    what = f"{name} is not sound: {counted(len(findings), 'finding')}"
    return DataError("\n".join([what, *lines, *steps]))


def _may_be_private(dataset: str) -> bool:
    """Whether no build.json, sealed as it was written, marks the data as public."""
    try:
        return read_build_info(versions.resolve(Path(dataset))).private
    except TarmacError:
        return True


def _without_keys(finding: Finding) -> Finding:
    where = {name: value for name, value in finding.where.items() if name not in KEYS}
    return replace(finding, where=where, evidence={})


def _row(finding: Finding) -> dict[str, str]:
    return {
        "severity": finding.severity,
        "code": finding.code,
        "where": " ".join(str(value) for value in finding.where.values()),
        "evidence": ", ".join(f"{name} {value}" for name, value in finding.evidence.items()),
        "fix": finding.remedy,
    }
