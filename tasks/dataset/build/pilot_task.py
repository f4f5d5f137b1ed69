"""What a pilot is handed, and where its page is."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from tasks.core.schema import Config
from tasks.dataset.build.rejects import Budget

PAGE = "pilot.html"
"""In the dataset's folder."""
Trial = Future[Path | None]
"""A pilot that may begin: running as long as it is, then its page, unless there was nothing to show."""


@dataclass(frozen=True)
class Pilot:
    """A pilot of these `ranks` of the catalogue in `staging`, for `to_convert` samples that may hold what is
    left of the budget."""

    config: Config
    staging: Path
    ranks: Sequence[int]
    budget: Budget
    to_convert: int
