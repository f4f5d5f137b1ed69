"""Proves a version sound before anyone trains on it, and any dataset when somebody asks."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from prefect import get_run_logger
from prefect.artifacts import create_table_artifact

from tasks import control
from tasks.core.errors import DataError, TarmacError
from tasks.core.findings import Finding
from tasks.core.schema import Config
from tasks.core.stores import redact
from tasks.core.units import counted
from tasks.dataset import versions
from tasks.dataset.build_info import read_build_info
from tasks.dataset.verify.findings import Level
from tasks.stage import StageResult, is_transient, shown, tell

KEYS = ("key", "member")
"""The parts of a place that may name a person."""
ROWS = 200
"""Findings in the table and in the log."""
LINES = 10
"""Findings in the message of the failed state."""


@dataclass(frozen=True)
class Verified:
    """The version that is sound, but for what is in quarantine."""

    version: Path


@control.stage(name="verify", retries=1, retry_condition_fn=is_transient)
def verify(config: Config, version: Path) -> StageResult[Verified]:
    """DataError with every finding when the version is not sound, unless all that is bad is in quarantine; of
    private data without keys."""
    with shown("verify") as stage:
        report = stage.call(
            "tasks.dataset.verify.verifier:verify_version", {"version": str(version)}, config.dataset.private
        )
        errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
        if errors:
            lines = [
                f"  {entry['code']} {_place(config, entry['where'])}: {entry['remedy']}"
                for entry in errors[:20]
            ]
            steps = dict.fromkeys(f"  next: {entry['command']}" for entry in errors if entry["command"])
            raise DataError("\n".join([f"{version} is not sound: {len(errors)} findings", *lines, *steps]))
        is_sound = not report["findings"]
        verdict = "sound" if is_sound else "sound but for what is in quarantine"
        return stage.result(f"{version.name}: {verdict}", Verified(version), "unchanged")


@control.stage(name="verify", retries=1, retry_condition_fn=is_transient)
def examine(dataset: str, level: Level) -> StageResult[None]:
    """DataError when the dataset, the version or the tars are not sound; the findings are in the run's log
    and in a table. What may be private is shown without keys."""
    with shown("verify") as stage:
        is_private = _may_be_private(dataset)
        asked = {"path": dataset, "level": level}
        report = stage.call("tasks.dataset.verify.verifier:verify", asked, is_private)
        findings = [_shown(Finding(**entry), is_private) for entry in report["findings"]]
        tell(
            create_table_artifact,
            [_row(finding) for finding in findings[:ROWS]],
            key="verify-" + re.sub("[^a-z0-9]+", "-", dataset.lower()).strip("-"),
            description=f"{counted(len(findings), 'finding')} in {redact(dataset)} at level {level}",
        )
        lines = ["\n".join(finding.lines()) for finding in findings[:ROWS]]
        if any(finding.severity == "error" for finding in findings):
            for line in lines:
                get_run_logger().error("%s", line)
            steps = dict.fromkeys(f"  next: {finding.command}" for finding in findings if finding.command)
            what = f"{redact(dataset)} is not sound: {counted(len(findings), 'finding')}"
            raise DataError("\n".join([what, *lines[:LINES], *steps]))
        unseen = f"; not looked at: {', '.join(report['not_seen'])}" if report["not_seen"] else ""
        return stage.result(f"{redact(dataset)} is sound at level {level}{unseen}", None)


def _may_be_private(dataset: str) -> bool:
    """Whether no build.json, as it was written, says that the data is not private."""
    try:
        return read_build_info(versions.resolve(Path(dataset))).private
    except TarmacError:
        return True


def _shown(finding: Finding, is_private: bool) -> Finding:
    if not is_private:
        return finding
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


def _place(config: Config, where: dict[str, object]) -> str:
    hidden = KEYS if config.dataset.private else ()
    return " ".join(str(value) for name, value in where.items() if name not in hidden)
