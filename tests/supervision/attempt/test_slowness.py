"""The watch over the pace does not report a standstill as slowness."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tasks.core.findings import Finding
from tasks.runs import phases
from tasks.runs.phases import PhaseWriter
from tasks.supervision.attempt import slowness
from tests.supervision.fakes import make_run


@pytest.mark.parametrize("stands_still", [True, False])
def test_two_standstills_are_no_pauses_between_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stands_still: bool
) -> None:
    run = make_run(tmp_path)
    now = 0.0
    monkeypatch.setattr(slowness.time, "monotonic", lambda: now)
    monkeypatch.setattr(phases.time, "time", lambda: now)
    watch, phase = slowness.Slowness(run), PhaseWriter(run)
    found: list[Finding] = []

    def look(seconds: float, stands: bool = False) -> Sequence[Finding]:
        nonlocal now
        now += seconds
        return watch.look([os.getpid()], stands)

    for step in range(1, 61):
        phase.set("step", step)
        found += look(1.0)
        if step in (20, 40):
            found += look(30.0, stands_still)
    assert [one.code for one in found] == ([] if stands_still else ["epoch.gap"])
