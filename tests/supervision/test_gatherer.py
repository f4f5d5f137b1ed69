"""The gatherer with the real wandb client: every row once, on its axis, whatever is killed and whenever."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from tasks.core.errors import TarmacError, UsageError
from tasks.core.files import read_json
from tasks.core.lease import Lease
from tasks.core.process import Identity
from tasks.runs import metrics
from tasks.runs.folder import RunFolder
from tasks.supervision import gathering, wandb_file
from tests.supervision import fakes
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import wait_for


def write_rows(run: RunFolder, first: int, last: int, pause_s: float = 0.0) -> None:
    writer = metrics.MetricsWriter(run.metrics)
    for step in range(first, last + 1):
        writer.append(metrics.make_row("train/step", step, "train", {"train/loss": 1 / step}))
        time.sleep(pause_s)


def assert_gathered(run: RunFolder) -> None:
    """The union of the run's `.wandb` files holds every row and every evaluation once."""
    assert gathering.is_complete(run)
    counts = Counter(row["uid"] for row in wandb_file.rows_of(run.wandb, run.id))
    assert counts.most_common(1)[0][1] == 1
    evaluations = [metrics.uid("eval/step", *_kind(key)) for key in gathering.results_of(run)]
    assert set(counts) == {row["uid"] for row in metrics.read(run.metrics)[0]} | set(evaluations)


def _kind(key: tuple[int, str]) -> tuple[int, str]:
    return key[0], f"eval/{key[1]}"


def test_rows_and_evaluations_lie_on_their_axes(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline", "project": "numbers"})
    write_rows(run, 1, 3)
    validation = metrics.make_row("train/step", 3, "val", {"val/loss": float("nan")})
    metrics.MetricsWriter(run.metrics).append(validation)
    fakes.evaluate(run.path, 20, "zero_shot")
    gathering.complete(run)
    assert_gathered(run)
    (path,) = wandb_file.files_of(run.wandb, run.id)
    found = wandb_file.read(path)
    assert found.run_id == run.id and found.is_finished
    assert found.axes == {
        "train/step": "",
        "eval/step": "",
        "train/*": "train/step",
        "val/*": "train/step",
        "val/loss": "train/step",
        "system/*": "train/step",
        "eval/*": "eval/step",
    }
    by_uid = {row["uid"]: row for row in found.rows}
    assert by_uid["train/step:2:train"]["train/loss"] == 0.5
    assert by_uid["train/step:3:val"]["val/loss"] is None
    evaluation = by_uid["eval/step:20:eval/zero_shot"]
    assert (evaluation["eval/step"], evaluation["eval/zero_shot/top1"]) == (20, 0.2)
    assert found.config["data/accepted"] == 100 and found.config["data/rejects"] == 2
    assert found.config["batch_size"] == 4
    assert not list(run.wandb.glob("*/files/*")), "no code, no requirements, no system facts are kept"


def test_gathered_again_nothing_is_written(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    write_rows(run, 1, 3)
    gathering.complete(run)
    files = wandb_file.files_of(run.wandb, run.id)
    gathering.start(run).wait(timeout=20)
    assert wandb_file.files_of(run.wandb, run.id) == files
    write_rows(run, 4, 4)
    assert not gathering.is_complete(run)
    gathering.complete(run)
    assert_gathered(run)


def test_sigkill_at_many_moments_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Killed while it starts, right after a flush, and with rows that wait for the next flush."""
    run = make_run(tmp_path, track={"mode": "offline"})
    writing = threading.Thread(target=write_rows, args=(run, 1, 160, 0.05))
    with Lease(run.lease):  # stands for the agent: the gatherer stays as long as it
        writing.start()
        for after_flush_s in (None, 0.0, 0.6):
            before = len(wandb_file.rows_of(run.wandb, run.id))
            process = gathering.start(run)
            if after_flush_s is None:
                time.sleep(0.2)
            else:
                wait_for(lambda before=before: len(wandb_file.rows_of(run.wandb, run.id)) > before)
                time.sleep(after_flush_s)
            process.kill()
            process.wait()
        process = gathering.start(run)
        writing.join()
    assert process.wait(timeout=30) == 0
    assert_gathered(run)
    assert len(metrics.read(run.metrics)[0]) == 160
    assert len(wandb_file.files_of(run.wandb, run.id)) > 1


def test_a_core_that_outlives_its_gatherer_does_not_write_behind_the_next(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    with Lease(run.lease):
        write_rows(run, 1, 5)
        first = gathering.start(run)
        wait_for(lambda: len(wandb_file.rows_of(run.wandb, run.id)) == 5)
        core = Identity.from_json(read_json(run.wandb_core))
        process = psutil.Process(core.pid)
        process.suspend()  # so it does not notice its gatherer's death
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        write_rows(run, 6, 10)
        time.sleep(1.0)
        first.kill()
        first.wait()
        assert core.is_alive()
        second = gathering.start(run)
        wait_for(lambda: not core.is_alive())
    assert second.wait(timeout=30) == 0
    assert_gathered(run)


def test_two_gatherers_at_once_write_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    with Lease(run.lease):
        first, second = gathering.start(run), gathering.start(run)
        write_rows(run, 1, 20)
        wait_for(lambda: run.gatherer_lease.exists())
    assert (first.wait(timeout=30), second.wait(timeout=30)) == (0, 0)
    assert_gathered(run)


def test_a_dead_server_costs_a_bounded_wait_and_leaves_offline_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    run = make_run(tmp_path, track={"mode": "online"})
    write_rows(run, 1, 5)
    code = (
        "import sys; from tasks.supervision import gatherer, tracker; tracker.INIT_TIMEOUT_S = 2\n"
        f"sys.exit(gatherer.main({str(run.path)!r}))"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began < 20
    assert_gathered(run)
    marker = read_json(run.gathered)
    assert marker["mode"] == "offline" and "connection refused" in marker["fallback"]
    with pytest.raises(TarmacError, match=r"was not uploaded; check WANDB_BASE_URL"):
        gathering.sync(run, timeout_s=3)


def test_disabled_tracking_writes_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_rows(run, 1, 3)
    assert gathering.start(run).wait(timeout=20) == 0
    assert wandb_file.files_of(run.wandb, run.id) == []
    with pytest.raises(UsageError, match=r"track\.mode"):
        gathering.complete(run)


def test_the_environment_keeps_the_account_only() -> None:
    base = {"WANDB_API_KEY": "k", "WANDB_RUN_ID": "other", "WANDB_MODE": "disabled", "HOME": "/h"}
    found = gathering.environment(base)
    assert found["WANDB_API_KEY"] == "k" and found["HOME"] == "/h"
    assert "WANDB_RUN_ID" not in found and "WANDB_MODE" not in found
    assert found["WANDB_HTTP_TIMEOUT"] == "5"
