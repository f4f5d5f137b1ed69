"""A rank's sign of life: rare within a phase, at once when the phase changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.runs import phases
from tasks.runs.folder import RunFolder
from tasks.runs.phases import PhaseWriter


def test_a_change_is_said_at_once_and_the_rest_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(phases.time, "time", lambda: now)
    run = RunFolder(tmp_path / "fake-1")
    writer = PhaseWriter(run)
    assert phases.read(run.phase()) is None
    writer.set("start", 0)
    writer.set("step", 1, [11, 12])
    first = phases.read(run.phase())
    assert first == phases.Phase("step", 1, 1000.0, 1000.0, os.getpid(), [11, 12])
    now = 1000.9
    writer.set("step", 2)
    assert phases.read(run.phase()) == first
    now = 1001.0
    writer.set("step", 3)
    later = phases.read(run.phase())
    assert later is not None and (later.step, later.since, later.at) == (3, 1000.0, 1001.0)
    assert [path.name for path in run.phase().parent.iterdir()] == ["rank_0.json"]
