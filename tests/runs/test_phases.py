"""A rank's sign of life: rare within a phase, at once when the phase changes."""

from __future__ import annotations

import os
import shutil
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
    assert phases.read_phase(run.phase()) is None
    writer.set("start", 0)
    writer.set("step", 1, [11, 12])
    first = phases.read_phase(run.phase())
    assert first == phases.Phase("step", 1, 1000.0, 1000.0, os.getpid(), [11, 12], {"start": 0.0}, 0.0, 1)
    now = 1000.9
    writer.set("step", 2)
    assert phases.read_phase(run.phase()) == first
    now = 1001.0
    writer.set("step", 3)
    later = phases.read_phase(run.phase())
    assert later is not None and (later.step, later.since, later.at) == (3, 1000.0, 1001.0)
    assert later.spent == {"start": 0.0, "step": 1.0}, "whatever was not written counts too"
    assert [path.name for path in run.phase().parent.iterdir()] == ["rank_0.json"]


def test_a_sign_of_life_that_cannot_be_written_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunFolder(tmp_path / "fake-1")
    writer = PhaseWriter(run)
    writer.set("start", 0)
    draft = run.phase().with_name(f".rank_0.json.{os.getpid()}.tmp")
    draft.symlink_to("/dev/full")
    writer.set("first_batch", 0)
    shutil.rmtree(run.phase().parent)
    writer.set("step", 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "rank_0.json: no sign of life ([Errno 28]" in caplog.text
    run.phase().parent.mkdir()
    writer.set("end", 2)
    said = phases.read_phase(run.phase())
    assert said is not None and said.phase == "end"
