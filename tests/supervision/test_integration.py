"""The real training, evaluations and wandb beside the real agent, all killed at once and started again."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tasks.dataset.version import versions
from tasks.loader.settings import LoaderSettings, write_settings
from tasks.runs.plan import plan
from tasks.supervision import launch
from tasks.supervision.status import look_at_run
from tasks.supervision.tracking import gathering
from tests.conftest import digits_config
from tests.supervision.conftest import processes_of
from tests.supervision.test_agent import wait_for
from tests.supervision.tracking.test_gatherer import assert_gathered


@pytest.mark.proof
def test_the_real_parts_fit_and_survive_sigkill_of_all(
    tmp_path: Path, raw_digits: Path, digits_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "AGENT", "tasks.supervision.agent:main")
    short = ["train.steps=12", "train.checkpoint_every=6", "evaluate.every=12", "train.log_every=2"]
    version = versions.resolve(digits_dataset)
    run = plan(digits_config(raw_digits, tmp_path, *short), version)
    write_settings(run.loader, LoaderSettings(workers=0, prefetch=2, reason="a test", measurements=[]))
    launch.start_or_adopt(run)
    wait_for(lambda: 6 in look_at_run(run).checkpoints, timeout_s=60)
    everything = processes_of(tmp_path)
    for process in everything:
        process.kill()
    psutil.wait_procs(everything, timeout=60)
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    status = launch.wait_for_evaluations(run)
    assert status.is_complete, status.evaluations
    gathering.complete(run)
    assert_gathered(run)
    assert status.checkpoints == [6, 12] and run.best.exists()
    assert run.eval_result(12).exists()
