"""The agent beside real processes: what a person finds in the run folder after success, failure and SIGKILL."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from flows import cli
from flows.commands.plan import training_left
from flows.commands.status import status as status_command
from tasks.core.config import load_config
from tasks.core.errors import DataError, Withdrawn
from tasks.core.files import read_json
from tasks.core.process import Identity
from tasks.dataset.version.layout import resolve
from tasks.evaluation.best import BestCheckpoint
from tasks.runs import ledger, metrics, record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.plan import changes_to_resume, locate, plan
from tasks.supervision import launch, stopping
from tasks.supervision.status import RunStatus, look_at_run
from tests.supervision.conftest import processes_of
from tests.supervision.fakes import make_config, make_run, model_of


def wait_for(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def finish(run: RunFolder) -> RunStatus:
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    return launch.wait_for_evaluations(run)


def rows(run: RunFolder) -> int:
    """Return how many steps are done, without delay: the sign of life counts them only once a second."""
    return len(metrics.read_metrics(run.metrics)[0])


def rank_of(run: RunFolder) -> Identity:
    newest = max(run.attempts.glob("*/rank_0.json"), key=lambda path: int(path.parent.name))
    return Identity.from_json(read_json(newest))


def assert_undisturbed(run: RunFolder) -> None:
    """The run's results are those of a run that nobody disturbed."""
    status = look_at_run(run)
    assert status.is_complete, (status.state, status.reason, status.evaluations)
    assert (run.checkpoint(40) / "model.safetensors").read_bytes() == model_of(40)
    steps = [row["train/step"] for row in metrics.read_metrics(run.metrics)[0]]
    assert steps == list(range(1, 41))
    assert 40 in {evaluation.step for evaluation in status.evaluations}
    for step in {evaluation.step for evaluation in status.evaluations}:
        summary = {"global_step": step, "results": {"zero_shot_top1": step / 100}}
        assert read_json(run.eval_result(step)) == summary
    assert not (run.path / "two_writers").exists()


def test_a_run_ends_with_everything_written_and_is_not_redone(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    first, second = launch.start_or_adopt(run), launch.start_or_adopt(run)
    assert (first.adopted, second.adopted) == (False, True)
    status = finish(run)
    assert_undisturbed(run)
    assert status.state == "succeeded" and status.reason == ""
    assert run.best.readlink() == Path("step_00000020")
    assert read_json(run.exit(1)) == {
        **read_json(run.exit(1)),
        "exit_code": 0,
        "signal": None,
        "outcome": "succeeded",
        "step": 40,
        "last_step": 40,
        "loss": 0.025,
        "checkpoint": 40,
    }
    (attempt,) = record.load_record(run).attempts
    assert attempt.outcome == "succeeded" and attempt.ended is not None
    states = [entry.state for entry in ledger.read_ledger(run.ledger) if entry.step == 40]
    assert states[0] == "submitted" and states[-1] == "done"
    assert not run.findings.exists()
    wait_for(lambda: processes_of(tmp_path) == [], timeout_s=5)
    before = run.record.read_bytes()
    started = launch.start_or_adopt(run)
    assert started.is_up_to_date and started.job is None
    assert run.record.read_bytes() == before and len(record.load_record(run).attempts) == 1


@pytest.mark.proof
def test_the_best_checkpoint_follows_the_evaluations_through_a_kill_and_a_late_wish(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    by_accuracy = {"every": 20, "tasks": ["zero_shot"], "best": "zero_shot_top1"}
    run = make_run(tmp_path, {"step_s": 0.05}, evaluate=by_accuracy)
    seen = set()

    def watched(step: int) -> bool:
        if run.best.is_symlink():
            seen.add(run.best.readlink().name)
        return look_at_run(run).best == BestCheckpoint(step, "zero_shot_top1", step / 100)

    launch.start_or_adopt(run)
    wait_for(lambda: watched(20))
    for process in processes_of(tmp_path):
        process.kill()
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    launch.start_or_adopt(run)
    wait_for(lambda: watched(40))
    launch.wait_for_evaluations(run)
    assert look_at_run(run).is_complete and watched(40)
    assert "step_00000020" in seen, "the first result chose before the others were there"
    assert launch.start_or_adopt(run).is_up_to_date
    status_command(runs=run.path.parent)
    assert "  best step 40 by zero_shot_top1 0.400" in capsys.readouterr().out
    wanted = make_config(
        tmp_path, evaluate={**by_accuracy, "best": {"metric": "zero_shot_top1", "mode": "min"}}
    )
    version = (
        Path(record.load_record(run).data[0].dataset) / "versions" / record.load_record(run).data[0].version
    )
    assert plan(wanted, version) == run, "the wish is no part of the run's identity"
    assert not look_at_run(run).is_complete
    finish(run)
    assert watched(20) and look_at_run(run).is_complete


def test_sigkill_of_everything_then_again_ends_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 25)
    everything = processes_of(tmp_path)
    for process in everything:
        process.kill()
    psutil.wait_procs(everything, timeout=60)
    killed = time.time()
    status = finish(run)
    assert_undisturbed(run)
    lost, last = status.record.attempts
    assert (lost.outcome, last.outcome) == ("lost", "succeeded")
    assert lost.ended is not None and killed - 5 < lost.ended <= killed, "it lasted until it was killed"


def test_a_run_whose_processes_were_all_killed_is_called_dead_and_taken_up_from_any_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path, {"step_s": 0.1})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 12)
    everything = processes_of(tmp_path)
    for process in everything:
        process.kill()
    psutil.wait_procs(everything, timeout=60)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    asked = ["doctor", "--run", str(run.path), "--out", "page.html"]
    assert cli.main(asked) == 1
    shown = capsys.readouterr().out
    assert "VERDICT  process.gone: its agent (process " in shown and "nothing is wrong" not in shown
    version = version_path(record.load_record(run).data[0])
    command = f"tarmac resume {run.path}"
    assert f"FIX        {command}\n" in shown
    assert changes_to_resume(run) == [f"dataset.output={version}"]
    (tmp_path / "data" / "current").symlink_to(f"versions/{version.name}")
    assert changes_to_resume(run) == []
    assert status_command(runs=run.path.parent) == 0
    assert f"    start it again, it resumes: {command}\n" in capsys.readouterr().out
    assert cli.main([*asked, "--json"]) == 1
    assert [one["command"] for one in json.loads(capsys.readouterr().out)["findings"]] == [command]
    for changes in ([], [f"dataset.output={version}"]):
        config = load_config(run.config, changes)
        assert locate(config, resolve(config.dataset.output)).path == run.path
    startable = "tasks.supervision.beforehand.require_startable"  # its manifest has a few lines only
    monkeypatch.setattr(startable, lambda *_, **__: None)
    seen = training_left(load_config(run.config), version.name)
    assert seen is not None and f"goes on: {run.name}, whose agent is gone at step" in seen.summary
    assert cli.main(["cancel", str(run.path)]) == 0
    assert capsys.readouterr().out.endswith(f"\n  again  {command}\n")


@pytest.mark.proof
def test_sigkill_of_the_agent_ends_its_training_and_the_next_call_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.05})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 12)
    rank = rank_of(run)
    psutil.Process(record.load_record(run).attempts[-1].pid).kill()
    wait_for(lambda: not rank.is_alive(), timeout_s=5)
    with pytest.raises(DataError, match=r"its agent is gone, .* at step"):
        wait_for(lambda: not look_at_run(run).agent_is_alive)
        launch.wait_for_training(run)
    finish(run)
    assert_undisturbed(run)


@pytest.mark.proof
def test_sigkill_of_submitits_controller_leaves_one_writer(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    started = launch.start_or_adopt(run)
    assert started.job is not None
    wait_for(lambda: rows(run) >= 5)
    psutil.Process(started.job.identity.pid).kill()
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    finish(run)
    assert_undisturbed(run)


@pytest.mark.proof
def test_a_training_that_outlives_its_agent_is_ended_before_another_starts(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.2})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 1)
    rank = rank_of(run)
    process = psutil.Process(rank.pid)
    process.suspend()  # so it does not see its input close
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
    psutil.Process(record.load_record(run).attempts[-1].pid).kill()
    (run.path / "fake.json").write_text("{}")
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    assert rank.is_alive()
    finish(run)
    assert not rank.is_alive()
    assert_undisturbed(run)


def test_cancel_stops_with_a_checkpoint_and_the_next_start_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.05})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 3)
    assert stopping.cancel(run)
    with pytest.raises(Withdrawn, match="cancelled by the user, at step"):
        launch.wait_for_training(run)
    assert look_at_run(run).state == "cancelled" and look_at_run(run).checkpoints != []
    (run.path / "fake.json").write_text("{}")
    finish(run)
    assert not run.stop.exists()
    for checkpoint in look_at_run(run).checkpoints:
        assert (run.checkpoint(checkpoint) / "model.safetensors").read_bytes() == model_of(checkpoint)


def test_sigterm_to_the_agent_becomes_the_sentinel(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.05})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 3)
    psutil.Process(record.load_record(run).attempts[-1].pid).send_signal(signal.SIGTERM)
    with pytest.raises(DataError, match="the agent was sent SIGTERM, at step"):
        launch.wait_for_training(run)
    ended = read_json(run.exit(1))
    assert ended["exit_code"] == 0 and ended["stop"]["who"] == "signal"


def test_a_training_that_does_not_obey_is_ended(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.2, "deaf": True, "stop_grace_s": 0.5})
    launch.start_or_adopt(run)
    wait_for(lambda: rows(run) >= 1)
    stopping.cancel(run, "enough")
    with pytest.raises(
        Withdrawn, match=r"enough; the training did not obey in time and was ended by SIGKILL"
    ):
        launch.wait_for_training(run)


@pytest.mark.proof
def test_the_time_limit_of_the_job_ends_it_with_a_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"step_s": 0.3}, engine={"train": {"time": "6s"}})
    launch.start_or_adopt(run)
    with pytest.raises(DataError, match="time limit"):
        launch.wait_for_training(run)
    assert look_at_run(run).checkpoints != []


@pytest.mark.proof
def test_a_lost_evaluation_says_why_and_is_completed_by_the_next_start(tmp_path: Path) -> None:
    behaviour = {"evaluation_fails_at": 20, "evaluation_dies_at": 40, "tries": 1}
    both = {"every": 20, "tasks": ["zero_shot"]}
    run = make_run(tmp_path, behaviour, evaluate=both, engine={"evaluate": {"jobs": 2}})
    status = finish(run)
    assert status.state == "succeeded"
    failed, lost = (evaluation.entry for evaluation in status.evaluations_missing)
    assert failed is not None and lost is not None
    assert (
        failed.state == "failed" and "1 of 1 tries used; ValueError: the weights do not fit" in failed.reason
    )
    assert lost.state == "lost" and "ended without a result" in lost.reason
    assert read_json(run.eval_result(20)) == {"global_step": 20, "results": {}}
    model = run.checkpoint(40) / "model.safetensors"
    written = model.stat().st_mtime_ns
    (run.path / "fake.json").write_text("{}")
    finish(run)
    assert_undisturbed(run)
    assert model.stat().st_mtime_ns == written
    assert sorted((run.path / "evaluated").read_text().split()) == ["20"] * 2 + ["40"] * 2


@pytest.mark.proof
def test_a_new_agent_takes_up_an_evaluation_that_lives(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"evaluation_s": 3.0}, evaluate={"every": 20, "tasks": ["zero_shot"]})
    launch.start_or_adopt(run)
    wait_for(lambda: (run.path / "evaluated").exists())
    psutil.Process(record.load_record(run).attempts[-1].pid).kill()
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    assert not run.evaluation(20, "zero_shot").exists()
    (run.path / "fake.json").write_text('{"evaluation_s": 0.0}')
    finish(run)
    assert_undisturbed(run)
    assert (run.path / "evaluated").read_text().split().count("20") == 1
