"""A cause: what must be observed to support it, which facts refute it, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.core.findings import Finding, Severity
from tasks.diagnosis.causes.signs import Signs

Refutation = Callable[[Signs], str | None]
"""Returns the fact that speaks against a cause, or None."""


@dataclass(frozen=True)
class Support:
    """The support for a cause: `what` is the sentence of the verdict. Evidence that is None is not shown."""

    what: str
    remedy: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    """The severity where it differs from the cause's own."""
    command: str | None = None
    may_be_a_pause: bool = False
    """Whether a pause of some seconds looks the same, so that the look must last longer than one."""


@dataclass(frozen=True)
class Cause:
    """A row of the table. `supports` returns None unless everything that the cause needs was observed.

    A cause that is neither supported nor refuted stays open, and no report mentions it.
    """

    code: str
    severity: Severity
    supports: Callable[[Signs], Support | None]
    refutations: tuple[Refutation, ...] = ()
    yields_to: tuple[str, ...] = ()
    """The codes of causes that explain the same signs better: this one is not named beside them."""

    def refuted_by(self, signs: Signs) -> str | None:
        """Return the first fact that refutes the cause."""
        return next((why for refutes in self.refutations if (why := refutes(signs)) is not None), None)

    def finding(self, support: Support) -> Finding:
        evidence = {name: value for name, value in support.evidence.items() if value is not None}
        severity, evidence = support.severity or self.severity, {"what": support.what, **evidence}
        return Finding(self.code, severity, support.remedy, support.where, evidence, command=support.command)
