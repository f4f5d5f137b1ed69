"""`findings.jsonl`: what was found about a run, one JSON line per finding, appended by its agent alone."""

from __future__ import annotations

from typing import Any, Literal

from tasks.core.files import read_lines
from tasks.core.findings import Finding, finding_of
from tasks.runs.folder import RunFolder

Finder = Literal["agent", "training", "pace", "scores"]
"""Who found it: the agent, about a standstill or an end; the training, about itself; the watch over its
pace; the comparison of its evaluations."""
OF_ANY_ATTEMPT: tuple[Finder, ...] = ("training", "scores")
"""What is found about the weights, which no later attempt gets past."""


def read_findings(run: RunFolder) -> list[dict[str, Any]]:
    """Return the lines, oldest first: a finding with `by`, the number of the `attempt`, and the time `t`."""
    return read_lines(run.findings)[0] if run.findings.is_file() else []


def findings_of(run: RunFolder, attempt: int) -> list[Finding]:
    """Return what was found in an attempt, and what was found about the weights in any; oldest first."""
    return [
        finding_of(line)
        for line in read_findings(run)
        if line.get("attempt") == attempt or line.get("by") in OF_ANY_ATTEMPT
    ]


def doubts_about(run: RunFolder) -> list[Finding]:
    """Return what is wrong with a training that goes on, or makes it slow; each once, and without what is
    for information only."""
    lines = [line for line in read_findings(run) if line.get("by") in (*OF_ANY_ATTEMPT, "pace")]
    found = {(line.get("code"), str(line.get("where"))): finding_of(line) for line in lines}
    return [finding for finding in found.values() if finding.severity != "info"]
