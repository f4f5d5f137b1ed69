"""One cause: what has to be seen to support it, what of it refutes it, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.core.findings import Finding, Severity
from tasks.diagnosis.causes.signs import Signs


@dataclass(frozen=True)
class Support:
    """All that supports a cause, for people: `what` is the verdict's sentence, `remedy` what mends it."""

    what: str
    remedy: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    """Where it differs from the cause's own."""
    command: str | None = None


@dataclass(frozen=True)
class Cause:
    """A row of the table. `supports` is None unless everything that the cause needs was seen.

    `refutes` gives the fact that speaks against it, None where nothing does. A cause that is neither
    supported nor refuted stays open, and is mentioned nowhere.
    """

    code: str
    severity: Severity
    supports: Callable[[Signs], Support | None]
    refutes: Callable[[Signs], str | None]

    def finding(self, support: Support) -> Finding:
        return Finding(
            self.code,
            support.severity or self.severity,
            support.remedy,
            where=support.where,
            evidence={"what": support.what, **support.evidence},
            command=support.command,
        )
