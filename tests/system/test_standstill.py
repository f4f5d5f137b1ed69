"""A loader worker that hangs in a real training: the agent proves it, and starts the training again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tasks.core.files import read_json, read_lines
from tasks.dataset.version import versions
from tasks.loader import worker_state
from tasks.loader.settings import LoaderSettings, write_settings
from tasks.runs.plan import plan
from tasks.supervision import launch
from tasks.supervision.status import look_at_run
from tests.conftest import ROOT, digits_config
from tests.services import until
from tests.supervision.conftest import processes_of
from tests.system.lab import step_of

pytestmark = pytest.mark.system
QUICK = (
    "train.steps=300",
    "train.batch_size=8",
    "train.checkpoint_every=100",
    "train.log_every=1",
    "train.on_stall=restart",
    "evaluate.every=300",
    "track.mode=disabled",
)


FIRST = 100
"""The step of the first checkpoint."""


@pytest.fixture(autouse=True)
def end_what_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for process in processes_of(tmp_path):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def impatient_agent(folder: str) -> None:
    """The agent, for which a silence of seconds is long while the training steps."""
    from tasks.supervision import agent
    from tasks.supervision.attempt import standstill

    standstill.LEAST_S = {**standstill.LEAST_S, "step": 5.0}
    standstill.TIMES = 2.0
    agent.main(folder)


@pytest.mark.proof
def test_a_hung_loader_worker_is_named_and_the_training_restarted(
    tmp_path: Path, raw_digits: Path, digits_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(launch, "AGENT", f"{__name__}:impatient_agent")
    run = plan(digits_config(raw_digits, tmp_path, *QUICK), versions.resolve(digits_dataset))
    write_settings(run.loader, LoaderSettings(workers=2, prefetch=2, reason="a test", measurements=[]))
    launch.start_or_adopt(run)
    until("steps after a checkpoint", lambda: step_of(run.path) > FIRST + 20, 240, pause_s=0.02)
    hung = next(one for one in worker_state.read_all(run.workers) if one.identity.is_alive())
    psutil.Process(hung.identity.pid).suspend()
    stopped, began = step_of(run.path), time.monotonic()
    until("the restart", lambda: "restarted (1 of 3)" in look_at_run(run).reason, 120)
    print(f"stood still from step {stopped} on, restarted after {time.monotonic() - began:.0f} s")
    until("the end of the worker that hung", lambda: not hung.identity.is_alive(), 30)
    status = launch.wait_for_training(run)
    findings, _ = read_lines(run.findings)
    [found] = findings
    assert found["evidence"]["what"].endswith(f"stopped by a signal (state T): {hung.identity.pid}")
    assert status.state == "succeeded"
    assert read_json(run.exit(1))["restarts"] == 1
    assert len(status.record.attempts) == 1, "within the attempt"
    assert run.observation(1).exists(), "the evidence is kept"
