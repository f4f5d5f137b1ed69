"""What the gatherer asks of a tracker: a place to which each row of a run goes once.

A tracker's files in the run's folder are its ledger: whoever opens it reads there which rows it has, so a
gatherer that was killed at any moment is simply started again. Only one process writes at a time, the one
that holds the gatherer's lease.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from tasks.core.errors import TarmacError
from tasks.core.units import shorten

REFUSALS = (
    (r"\b401\b|unauthorized|unauthenticated|invalid api key", "the key was refused"),
    (r"no api key|api_key not configured|not logged in|could not find .*api key", "there is no key"),
    (r"\b403\b|forbidden|permission denied", "the account may not write to the project"),
    (r"\b404\b", "the server does not know the project or its owner"),
    (r"\b429\b|rate limit|too many requests", "the server asks to wait"),
    (r"\b5\d\d\b", "the server failed"),
    (r"connection re(set|fused)|no such host|unreachable|dial tcp|\beof\b", "the server cannot be reached"),
    (r"fatal error while uploading", "the server refused the rows"),
    (r"timed? ?out|deadline exceeded", "the server did not answer in time"),
)
"""The answers of a server, and how each is shown in one clause; the first that fits counts."""


class TrackerUnreachable(TarmacError):
    """The tracker's server cannot be used now; the message is a clause that explains why."""


class Tracker(Protocol):
    """The rows of one run in one tracker, from the opening to `close`."""

    @property
    def url(self) -> str | None:
        """The address of the run's page; None for a tracker without a server."""

    def recorded(self) -> dict[str, bool]:
        """Read which uids its files hold, each with whether a row of it has no null."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Hand over a row that is not recorded. TrackerUnreachable when its server cannot be used."""

    def flush(self) -> None:
        """Have what was logged written soon, without waiting for it."""

    def close(self) -> str | None:
        """Write and end everything, within a bounded time; return why a server does not have all of it."""


def clause_of(text: str) -> str:
    """Return in one clause what a library said about a server that it cannot use."""
    plain = " ".join(text.split())
    for pattern, clause in REFUSALS:
        if re.search(pattern, plain, re.IGNORECASE):
            return clause
    return shorten(plain)
