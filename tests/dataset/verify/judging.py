"""Calls verify so that a hang fails one test and does not stop all."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.core.findings import Finding, Report
from tasks.dataset.verify.verifier import verify

HUNG_S = 60.0
"""Wall-clock seconds, with room for a loaded machine."""


class Hung(BaseException):
    """verify did not end. No handler in it may take this for an error of a file."""


def judged(path: Path, level: Any = "default") -> Report:
    """The report, which arrived within HUNG_S, can be printed, and names a remedy for every finding."""
    signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_REAL, HUNG_S)
    try:
        report = verify(path, level)
    except Hung:
        raise AssertionError(f"verify --{level} does not come to an end within {HUNG_S} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert json.loads(json.dumps(report.to_json(), allow_nan=False))["ok"] is report.ok
    assert all(finding.severity == "error" and finding.remedy for finding in report.findings)
    assert report.ok is not bool(report.findings)
    return report


def _hang(*_: object) -> None:
    raise Hung


def as_lines(findings: Iterable[Finding]) -> str:
    """The first findings, one per line."""
    lines = [f"{one.code} {' '.join(map(str, one.where.values()))} {dict(one.evidence)}" for one in findings]
    return "".join(f"\n    {line[:160]}" for line in lines[:12])
