"""Findings: what is wrong, where, the evidence and the remedy. A report holds all of them.

Every command that judges something reports findings, so that a person, a script and a page read the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
MARKS: Mapping[Severity, str] = {"error": "✗", "warning": "!", "info": "·"}


@dataclass(frozen=True)
class Finding:
    """One cause. `where` names split, shard, key, member, rank, worker or source line, if they apply."""

    code: str
    severity: Severity
    remedy: str
    where: Mapping[str, Any] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    flags: Mapping[str, Any] | None = None
    command: str | None = None

    @property
    def line(self) -> str:
        """Return it in one line, without the fix."""
        where = "".join(f" {value}" for value in self.where.values())
        return f"{MARKS[self.severity]} {self.code}{where}: {self.evidence.get('what', '')}"

    def lines(self) -> list[str]:
        """Return the lines that the terminal shows."""
        where = " ".join(str(value) for value in self.where.values())
        evidence = ", ".join(f"{key} {value}" for key, value in self.evidence.items())
        head = f"{MARKS[self.severity]} {self.code:<22} {where}"
        return [head.rstrip(), *([f"    found  {evidence}"] if evidence else []), f"    fix    {self.remedy}"]


FIELDS = tuple(one.name for one in fields(Finding))


def finding_of(entry: Mapping[str, Any]) -> Finding:
    """Return the finding in an object that may have further keys, as the lines of `findings.jsonl` do."""
    return Finding(**{name: entry[name] for name in FIELDS if name in entry})


@dataclass(frozen=True)
class Report:
    """All findings of one examination, with what was ruled out and what could not be examined."""

    findings: Sequence[Finding] = ()
    ruled_out: Sequence[Mapping[str, Any]] = ()
    not_seen: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "ok": self.ok,
            "findings": [asdict(finding) for finding in self.findings],
            "ruled_out": [dict(entry) for entry in self.ruled_out],
            "not_seen": list(self.not_seen),
        }
