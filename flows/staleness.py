"""Which datasets of this project are older than their configs want: `schedule.fresh_within`.

A schedule that nobody runs, a build that fails each night and a mirror that is gone all end in the same way:
the dataset grows old in silence. The disk alone shows it, so `tarmac status` and `tarmac up` report it
without a flow. Prefect is not imported here.
"""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

from tasks.core.errors import TarmacError
from tasks.core.findings import Finding
from tasks.core.units import format_duration, when

CODE = "dataset.stale"
KEY = "fresh_within"


def stale_datasets(now: float | None = None) -> list[Finding]:
    """Return a finding for each dataset of `configs/*.yaml` that is older than its config wants. A dataset
    without a version is not old, and a config with a mistake is left to whoever uses it."""
    found = []
    for path in sorted(Path("configs").glob("*.yaml")):
        try:
            if KEY in path.read_text(encoding="utf-8") and (stale := _stale(path, now or time.time())):
                found.append(stale)
        except (TarmacError, OSError, ValueError):
            continue
    return found


def _stale(path: Path, now: float) -> Finding | None:
    from tasks.core.config import load_config
    from tasks.dataset.version.versions import fresh_at

    config = load_config(path)
    limit_s = None if config.schedule is None else config.schedule.fresh_within
    at = fresh_at(config.dataset.output)
    if limit_s is None or at is None or now - at <= limit_s:
        return None
    old = f"it was last brought up to date {format_duration(now - at)} ago, {when(at)}"
    return Finding(
        CODE,
        "warning",
        "see why its rebuild has not run or has failed, or build it now",
        {"dataset": os.fspath(config.dataset.output), "config": config.name},
        {"what": f"{old}; schedule.{KEY} is {format_duration(limit_s)}"},
        command=f"tarmac build {shlex.quote(str(path))}",
    )
