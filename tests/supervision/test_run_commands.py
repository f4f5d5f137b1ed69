"""`logs`, `resume`, `forget` and `status` on runs of the real agent with a training of a few lines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from tasks.core.files import read_json, write_json
from tasks.core.lock import Lease, holder_of, pinned
from tasks.dataset.building.under_way import ProgressFile
from tasks.runs import record
from tasks.runs.folder import RunFolder, list_runs
from tasks.runs.plan import plan
from tasks.supervision import launch
from tasks.supervision.status import look_at_run
from tests.supervision.fakes import ROOT, make_config, make_run
from tests.supervision.test_agent import finish, rank_of, rows, wait_for

TARMAC = [sys.executable, "-m", "flows.cli"]


def tarmac(run: RunFolder, *words: str) -> int:
    return cli.main([words[0], str(run.path), *words[1:]])


def begun(*words: str) -> subprocess.Popen[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*TARMAC, *words], cwd=ROOT, text=True, **streams)  # type: ignore[call-overload,no-any-return]


def test_the_log_of_the_first_rank_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, {"says": "one\ntwo\nthree"})
    finish(run)
    capsys.readouterr()
    assert tarmac(run, "logs", "-n", "2") == 0
    shown = capsys.readouterr()
    assert shown.out == "two\nthree\n" and "attempts/1/logs/rank_0.log" in shown.err
    assert tarmac(run, "logs", "--json") == 0
    assert json.loads(capsys.readouterr().out)["lines"] == ["one", "two", "three"]


def test_a_log_is_followed_over_a_restart_to_the_end(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"says": "hello", "step_s": 0.1}, train={"on_crash": "restart"})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 12)
    following = begun("logs", str(run.path), "-f")
    assert following.stdout is not None and following.stdout.readline() == "hello\n"
    os.kill(rank_of(run).pid, signal.SIGKILL)
    printed, told = following.communicate(timeout=120)
    assert printed == "hello\n", "the log of the second life"
    assert told.count("==> ") == 3 and f"==> {run.name} is succeeded" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rank", "7"], "--rank: attempt 1 of {name} has no log of rank 7; it has: 0"),
        (
            ["--evaluation", "40/retrieval"],
            "no job was started for 40/retrieval of {name}; it has: 40/zero_shot",
        ),
        (["--evaluation", "zero_shot"], "--evaluation: 'zero_shot' is no STEP/TASK"),
        (["--evaluation", "40/zero_shot", "--rank", "0"], "--rank, --evaluation: choose one"),
        (["-f", "--json"], "--follow, --json: choose one"),
    ],
)
def test_a_log_that_is_not_there_is_one_line(
    finished: RunFolder, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tarmac(finished, "logs", *words) == 2
    shown = capsys.readouterr()
    assert message.format(name=finished.name) in shown.err + shown.out


def test_the_log_of_an_evaluation_is_that_of_its_job(
    finished: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tarmac(finished, "logs", "--evaluation", "40/zero_shot") == 0
    assert "zero_shot_40_1" in capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = make_run(tmp_path_factory.mktemp("finished"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(ROOT))
        patched.setattr(launch, "AGENT", "tests.supervision.fakes:agent_main")
        finish(run)
    return run


def test_a_run_is_removed_with_what_it_pins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    finish(run)
    (version,) = (tmp_path / "data" / "versions").iterdir()
    assert pinned(tmp_path / "data") == {version.name: [run.id]}
    capsys.readouterr()
    assert tarmac(run, "forget") == 1
    assert f"{run.name} stays (4 checkpoints, 1 result, " in capsys.readouterr().err and run.path.exists()
    left_over = run.path.with_name(".removed-of-a-killed-one")
    (left_over / "checkpoints").mkdir(parents=True)
    shutil.copy(run.record, left_over)
    assert list_runs(run.path.parent) == [run]
    assert tarmac(run, "forget", "--yes") == 0
    assert f"✓ removed {run.name}: 4 checkpoints" in capsys.readouterr().out
    assert list(run.path.parent.iterdir()) == [] and pinned(tmp_path / "data") == {}


def test_a_run_that_is_needed_is_not_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path, {"step_s": 0.2})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 10)
    assert tarmac(run, "forget", "--yes") == 1
    assert f"{run.name} is at work; end it first: tarmac cancel" in capsys.readouterr().err
    cli.main(["cancel", str(run.path)])
    weights = run.checkpoint(10) / "model.safetensors"
    (version,) = (tmp_path / "data" / "versions").iterdir()
    model = {"name": "tarmac/digits", "pretrained": str(weights)}
    reader = plan(make_config(tmp_path, train={"model": model}), version)
    capsys.readouterr()
    assert tarmac(run, "forget", "--yes") == 1
    assert f"{run.name} is what {reader.name} starts from" in capsys.readouterr().err and weights.exists()


def test_a_run_whose_evaluation_outlives_its_agent_is_not_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, {"evaluation_s": 60.0})
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    wait_for(lambda: holder_of(run.evaluation_lease(40, "zero_shot")) is not None)
    os.kill(record.load_record(run).attempts[-1].pid, signal.SIGKILL)
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    assert tarmac(run, "forget", "--yes") == 1
    assert f"{run.name} is at work; end it first: tarmac cancel" in capsys.readouterr().err
    cli.main(["cancel", str(run.path)])
    assert tarmac(run, "forget", "--yes") == 0 and not run.path.exists()


def test_a_failure_that_was_dismissed_needs_nobody_until_the_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, {"nan_at": 7})
    launch.start_or_adopt(run)
    launch.follow(run, lambda status: not status.agent_is_alive)
    assert "NEEDS YOU" in status_of(run, capsys)
    assert tarmac(run, "forget", "--dismiss") == 0
    assert "NEEDS YOU" not in status_of(run, capsys)
    assert "failed, dismissed" in status_of(run, capsys)
    launch.start_or_adopt(run)
    launch.follow(run, lambda status: not status.agent_is_alive)
    assert "NEEDS YOU" in status_of(run, capsys)


def status_of(run: RunFolder, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert cli.main(["status", "--runs", str(run.path.parent), *words]) == 0
    return capsys.readouterr().out


def test_status_shows_pace_datasets_and_a_build_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path, {"step_s": 0.3})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 3)
    version = record.load_record(run).data[0].version
    (tmp_path / "data" / "current").symlink_to(f"versions/{version}")
    manifest = tmp_path / "data" / "current" / "manifest.json"
    facts = {
        "format": "tarmac/1",
        "name": "fake",
        "modality": "image_text",
        "digest": "",
        "config_digest": "",
    }
    write_json(manifest, {**read_json(manifest), **facts, "source": {"kind": "table", "digest": ""}})
    with Lease(tmp_path / "data" / "lease.json"):
        progress = ProgressFile(tmp_path / "data", lambda done, total, note: None)
        progress.begin()
        progress(100, 1000, "samples")
        kept = json.loads((tmp_path / "data" / "progress.json").read_text())
        write_json(tmp_path / "data" / "progress.json", {**kept, "done": 400, "at": kept["since"] + 30.0})
        shown = status_of(run, capsys)
        (dataset,) = json.loads(status_of(run, capsys, "--json"))["datasets"]
    assert f"version {version}  100 samples  2\u202fB  1 version" in shown
    assert "building: 400/1,000 samples, 60\u202fs left, by process" in shown
    assert dataset["build"]["left_s"] == pytest.approx(60.0)
    assert "goodput" in shown
    assert "in use by" not in status_of(run, capsys)
    progress.end()
    assert not (tmp_path / "data" / "progress.json").exists()


def test_status_is_watched_until_ctrl_c(finished: RunFolder, tmp_path: Path) -> None:
    """Where nobody sees a terminal it prints only what is new."""
    with (tmp_path / "printed").open("w") as output:
        words = [*TARMAC, "status", "--watch", "--runs", str(finished.path.parent)]
        watching = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=output)
    wait_for(lambda: finished.name in (tmp_path / "printed").read_text())
    time.sleep(2.5)
    watching.send_signal(signal.SIGINT)
    assert watching.wait(30) == 0
    assert (tmp_path / "printed").read_text().count("RESTING") == 1


def test_what_has_changed_is_said_when_a_run_is_resumed(
    finished: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on with its own config on its own version, from any folder."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("flows.commands.training.train", lambda config, **facts: given.update(facts) or 0)
    monkeypatch.chdir(tmp_path)
    state = record.load_record(finished)
    dataset = Path(state.data[0].dataset)
    newer = dataset / "versions" / ("f" * 12)
    shutil.copytree(dataset / "versions" / state.data[0].version, newer)
    (dataset / "current").symlink_to(newer)
    with Lease(finished.lease):
        record.save_record(finished, state.having_last(versions={"torch": "1.0"}))
    assert tarmac(finished, "resume") == 0
    assert "torch 1.0 →" in caplog.text and "its data has a newer version" in caplog.text
    assert given["changes"] == [f"dataset.output={dataset / 'versions' / state.data[0].version}"]
