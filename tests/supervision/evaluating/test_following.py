"""Checkpoints of another trainer: when they are taken, what becomes of them, and when that ends."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.commands.status import status as status_command
from tasks.core.errors import UsageError, Withdrawn
from tasks.core.files import read_json, write_json
from tasks.core.process import Identity
from tasks.evaluate import require_followed
from tasks.runs import ledger, record
from tasks.runs.folder import RunFolder
from tasks.runs.followed import Followed, origins_of, read_news
from tasks.runs.plan import plan
from tasks.runs.run_findings import read_findings
from tasks.supervision import launch, stopping
from tasks.supervision.evaluating import following
from tasks.supervision.evaluating.following import Follower, followed_at, has_news, reopen
from tasks.supervision.status import RunStatus, look_at_run
from tests.supervision.fakes import make_config, make_run
from tests.supervision.test_agent import wait_for
from tests.trainers.handmade import save_weights, tear


class Clock:
    """Seconds that pass only when a test lets them."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_following(
    tmp_path: Path, behaviour: dict[str, Any] | None = None, until: int | None = None, **blocks: Any
) -> tuple[RunFolder, Path]:
    """A planned run that follows a folder, which another trainer has made."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    make_run(tmp_path)
    version = next((tmp_path / "data/versions").iterdir())
    run = plan(make_config(tmp_path, **blocks), version, followed=followed_at(folder, True, until))
    write_json(run.path / "fake.json", behaviour or {})
    return run, folder


def settle(follower: Follower, clock: Clock, passing_s: float = following.SETTLED_S) -> None:
    follower.look()
    clock.now += passing_s
    follower.look()


@pytest.fixture
def followed(tmp_path: Path) -> tuple[RunFolder, Path, Follower, Clock]:
    run, folder = make_following(tmp_path)
    clock = Clock()
    return run, folder, Follower(run, Followed(path=folder, is_folder=True), clock), clock


def test_a_checkpoint_is_taken_once_it_has_settled(followed: Any) -> None:
    run, folder, follower, clock = followed
    assert not follower.look() and "no checkpoint yet; waits for the next" in follower.words
    save_weights(folder / "epoch_1.pt")
    assert not follower.look() and "epoch_1.pt is being written" in follower.words
    save_weights(folder / "epoch_1.pt", 1)
    clock.now += following.SETTLED_S
    assert not follower.look(), "it has changed"
    clock.now += following.SETTLED_S
    assert follower.look()
    assert origins_of(run)[1].path == folder / "epoch_1.pt" and not follower.look()
    assert "took epoch_1.pt as step 1, its epoch" in follower.words


def test_a_torn_checkpoint_is_given_up_once_and_taken_when_it_is_written_again(followed: Any) -> None:
    run, folder, follower, clock = followed
    tear(save_weights(folder / "epoch_1.pt"))
    settle(follower, clock)
    assert origins_of(run) == {} and "epoch_1.pt is torn" in follower.words
    settle(follower, clock, following.TORN_S)
    assert origins_of(run)[1].unusable == "epoch_1.pt is torn: its end is missing"
    settle(follower, clock, following.TORN_S)
    assert len(origins_of(run)) == 1 and "waits for the next" in follower.words
    save_weights(folder / "epoch_1.pt")
    settle(follower, clock)
    assert not origins_of(run)[1].unusable


def test_what_does_not_count_as_the_others_do_is_left_out_and_named(
    followed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run, folder, follower, clock = followed
    save_weights(folder / "epoch_1.pt")
    settle(follower, clock)
    save_weights(folder / "checkpoint-500/model.safetensors")
    save_weights(folder / "epoch_1.safetensors")
    with caplog.at_level(logging.WARNING):
        settle(follower, clock)
    assert set(origins_of(run)) == {1}
    assert read_news(run).left_out == {
        "checkpoint-500": "it counts steps, and the others epochs",
        "epoch_1.safetensors": "its number is that of epoch_1.pt",
    }
    assert len(caplog.records) == 2


def test_steps_are_taken_where_steps_and_epochs_are_there_at_first(followed: Any) -> None:
    run, folder, follower, clock = followed
    save_weights(folder / "epoch_1.pt")
    save_weights(folder / "step_500.pt")
    settle(follower, clock)
    save_weights(folder / "step_1000.pt")
    settle(follower, clock)
    assert set(origins_of(run)) == {500, 1000}
    assert read_news(run).left_out == {"epoch_1.pt": "it counts epochs, and the others steps"}


def test_a_folder_without_weights_leaves_no_epoch_out(followed: Any) -> None:
    run, folder, follower, clock = followed
    save_weights(folder / "epoch_1.pt")
    (folder / "step_500").mkdir()
    settle(follower, clock)
    assert set(origins_of(run)) == {1}


def test_what_was_taken_before_an_error_is_reported(followed: Any) -> None:
    run, folder, follower, clock = followed
    for step in (1, 2):
        save_weights(folder / f"step_{step}.pt")
    run.checkpoints.mkdir()
    run.checkpoint(2).touch()  # so that nothing can be written below it
    follower.look()
    clock.now += following.SETTLED_S
    assert follower.look() and set(origins_of(run)) == {1}
    with pytest.raises(OSError, match="step_00000002"):
        follower.look()
    run.checkpoint(2).unlink()
    assert follower.look() and set(origins_of(run)) == {1, 2}


def test_nothing_is_over_while_it_cannot_be_seen(followed: Any) -> None:
    run, folder, _, clock = followed
    follower = Follower(run, Followed(path=folder, is_folder=True, until_step=1), clock)
    save_weights(folder / "step_1.pt")
    settle(follower, clock)
    assert follower.is_over
    save_weights(folder / "step_1.pt", 1)
    follower.look()
    folder.rename(folder.with_name("away"))
    with pytest.raises(FileNotFoundError):
        follower.look()
    assert not follower.is_over, "it is written again"


def test_the_trainers_record_or_the_given_number_is_the_end(followed: Any) -> None:
    run, folder, follower, clock = followed
    (folder / "params.txt").write_text("epochs: 2\n")
    save_weights(folder / "checkpoints/epoch_1.pt")
    settle(follower, clock)
    assert not follower.is_over and "until 2 (params.txt)" in follower.words
    save_weights(folder / "checkpoints/epoch_2.pt")
    follower.look()
    assert not follower.is_over, "it is not taken yet"
    settle(follower, clock)
    assert follower.is_over
    save_weights(folder / "checkpoints/epoch_1.pt", 1)
    follower.look()
    assert not follower.is_over, "one is written again"
    settle(follower, clock)
    assert follower.is_over
    early = Follower(run, Followed(path=folder, is_folder=True, until_step=1))
    early.observe()
    assert early.is_over
    late = Follower(run, Followed(path=folder, is_folder=True, until_step=9))
    late.observe()
    assert late.is_over, "the trainer has ended without it"


def test_a_quiet_folder_is_reported_the_later_the_longer_its_pauses_are(followed: Any) -> None:
    run, folder, follower, clock = followed
    save_weights(folder / "step_1.pt")
    settle(follower, clock)
    clock.now += 3600
    follower.look()
    assert read_news(run).quiet_s == following.QUIET_S * 2
    save_weights(folder / "step_2.pt")
    settle(follower, clock)
    assert read_news(run).quiet_s == 0
    clock.now += 3600
    follower.look()
    assert read_news(run).quiet_s == 0, "its pauses are as long"
    clock.now += 3 * 3600
    follower.look()
    assert read_news(run).quiet_s > 3 * 3600


def test_what_is_no_folder_and_no_checkpoint_is_refused_in_a_line(tmp_path: Path) -> None:
    save_weights(tmp_path / "logs/epoch_1.pt")
    save_weights(tmp_path / "out/checkpoint-5/model.safetensors")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    for path, is_folder, says in [
        ("nowhere", True, "--follow: there is no .*nowhere; name the folder"),
        ("nowhere.pt", False, "CHECKPOINT: there is no"),
        ("logs/epoch_1.pt", True, "is a checkpoint itself; leave --follow out"),
        ("out/checkpoint-5", True, "is a checkpoint itself; leave --follow out"),
        ("logs", False, "is no checkpoint: name one, such as .*logs/epoch_1.pt"),
        ("empty", False, r"is no checkpoint: empty holds no weights \(such as model.safetensors\)"),
        ("notes.txt", False, r"is no file of weights \(.safetensors, .pt,"),
    ]:
        with pytest.raises(UsageError, match=says):
            followed_at(tmp_path / path, is_folder, None)
    assert followed_at(tmp_path / "empty", True, 3).until_step == 3


def finish(run: RunFolder) -> RunStatus:
    launch.start_or_adopt(run)
    return launch.wait_for_evaluations(run)


def uids(run: RunFolder) -> list[tuple[int, str]]:
    return [(one.step, one.state) for one in ledger.read_ledger(run.ledger) if one.is_final]


def test_a_folder_is_followed_to_its_end_and_nothing_is_done_twice(tmp_path: Path) -> None:
    theirs = tmp_path / "eval_results/mine"
    evaluate = {"every": 40, "tasks": ["zero_shot"], "results_dir": str(theirs)}
    run, folder = make_following(tmp_path, evaluate=evaluate)
    (folder / "params.txt").write_text("epochs: 2\n")
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).state == "running")
    save_weights(folder / "checkpoints/epoch_1.pt")
    wait_for(lambda: look_at_run(run).evaluations_done == 1)
    save_weights(folder / "checkpoints/epoch_2.pt")
    status = launch.wait_for_evaluations(run)
    assert (status.state, status.step, status.steps, status.is_complete) == ("succeeded", 2, 2, True)
    for step in (1, 2):
        expected = {"global_step": step, "results": {"zero_shot_top1": step / 100}}
        assert read_json(run.eval_result(step)) == read_json(theirs / f"step_{step}.json") == expected
    assert {path.name for path in folder.rglob("*")} == {
        "params.txt",
        "checkpoints",
        "epoch_1.pt",
        "epoch_2.pt",
    }
    reopen(run)
    assert launch.start_or_adopt(run).is_up_to_date

    (folder / "params.txt").write_text("epochs: 3\n")
    save_weights(folder / "checkpoints/epoch_3.pt")
    assert has_news(run)
    reopen(run)
    finish(run)
    assert sorted(uids(run)) == [(1, "done"), (2, "done"), (3, "done")]
    assert (run.path / "evaluated").read_text().split() == ["1", "2", "3"]


def test_a_rule_reports_on_the_steps_taken_and_stops_nothing(tmp_path: Path) -> None:
    rule = {"metric": "zero_shot_top1", "no_better_for": 2}
    evaluate = {"every": 10, "tasks": ["zero_shot"], "stop_when": rule}
    run, folder = make_following(tmp_path, {"top1": 0.5, "evaluation_s": 0.0}, until=10, evaluate=evaluate)
    for epoch in (1, 2, 3):
        save_weights(folder / f"epoch_{epoch}.pt")
    launch.start_or_adopt(run)
    wait_for(run.findings.exists)
    save_weights(folder / "epoch_10.pt")
    status = launch.wait_for_evaluations(run)
    assert (status.state, status.evaluations_done) == ("succeeded", 4)
    (finding,) = read_findings(run)
    assert (finding["code"], finding["where"]["step"], finding["remedy"]) == (
        "score.plateau",
        3,
        "look at it",
    )


@pytest.mark.proof
def test_one_that_is_written_again_is_evaluated_again(tmp_path: Path) -> None:
    run, folder = make_following(tmp_path, until=2)
    for step in (1, 2):
        save_weights(folder / f"step_{step}.safetensors")
    finish(run)
    save_weights(folder / "step_1.safetensors", 1)
    reopen(run)
    status = finish(run)
    assert status.is_complete and (run.path / "evaluated").read_text().split() == ["1", "2", "1"]


def test_kills_of_agent_and_job_cost_nothing(tmp_path: Path) -> None:
    run, folder = make_following(tmp_path, {"evaluation_s": 3.0}, until=2)
    save_weights(folder / "step_1.safetensors")
    launch.start_or_adopt(run)
    wait_for(lambda: (run.path / "evaluated").exists())
    for lease in run.evaluations.glob("step_*/.*.lease"):
        os.kill(Identity.from_json(read_json(lease)).pid, signal.SIGKILL)
    os.kill(record.load_record(run).attempts[-1].pid, signal.SIGKILL)
    wait_for(lambda: look_at_run(run).is_abandoned)
    save_weights(folder / "step_2.safetensors")
    write_json(run.path / "fake.json", {"evaluation_s": 0.1})
    status = finish(run)
    assert status.is_complete and set(origins_of(run)) == {1, 2}
    assert not (run.path / "two_writers").exists()
    assert sorted(uids(run)) == [(1, "done"), (2, "done")]


def test_one_that_is_torn_and_one_that_is_removed_have_their_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = make_following(tmp_path, {"evaluation_s": 2.5, "torn_s": 0.5}, until=3)
    for step in (1, 2, 3):
        save_weights(folder / f"step_{step}.safetensors")
    tear(folder / "step_1.safetensors")
    launch.start_or_adopt(run)
    wait_for(lambda: set(origins_of(run)) == {1, 2, 3})
    wait_for(lambda: (run.path / "evaluated").exists())
    (folder / "step_3.safetensors").unlink()
    status = launch.wait_for_evaluations(run)
    lost = {one.step: (one.state, one.entry.reason) for one in status.evaluations_missing if one.entry}
    assert lost == {
        1: ("failed", lost[1][1]),
        3: ("lost", f"{folder / 'step_3.safetensors'} was removed before it was evaluated"),
    }
    assert lost[1][1].startswith("step_1.safetensors is torn: ")
    assert (run.path / "evaluated").read_text().split() == ["2"], "nothing was tried in vain"


def test_it_is_cancelled_shown_and_taken_up_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, folder = make_following(tmp_path)
    save_weights(folder / "step_1.safetensors")
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).evaluations_done == 1)
    status_command(runs=run.path.parent)
    shown = capsys.readouterr().out
    assert f"{run.name}  following  1  1 of 1 evaluations" in shown
    assert "took step_1.safetensors as step 1; waits for the next, until it is cancelled" in shown
    status_command(runs=run.path.parent, as_json=True)
    row = next(one for one in json.loads(capsys.readouterr().out)["runs"] if one["id"] == run.id)
    assert (row["state"], row["follows"], row["quiet_s"]) == ("running", str(folder), 0)
    stopped = stopping.end(run, "cancelled by the user")
    assert not stopped.left and not stopped.forced
    status = look_at_run(run)
    assert (status.state, status.reason) == ("cancelled", "cancelled by the user")
    with pytest.raises(Withdrawn, match="cancelled by the user; again: tarmac resume"):
        require_followed(status)
    save_weights(folder / "step_2.safetensors")
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).evaluations_done == 2)
    stopping.end(run, "cancelled by the user")
    assert (run.path / "evaluated").read_text().split() == ["1", "2"]


@pytest.mark.proof
def test_a_folder_that_goes_away_for_a_while_ends_nothing(tmp_path: Path) -> None:
    run, folder = make_following(tmp_path, until=2)
    save_weights(folder / "step_1.safetensors")
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).evaluations_done == 1)
    folder.rename(tmp_path / "away")
    log = launch.job_in(run, record.load_record(run).job)
    assert log is not None
    wait_for(lambda: "the followed folder: FileNotFoundError" in log.log.read_text())
    (tmp_path / "away").rename(folder)
    save_weights(folder / "step_2.safetensors")
    assert launch.wait_for_evaluations(run).is_complete


def test_the_last_one_is_evaluated_although_it_cannot_be_reported(tmp_path: Path) -> None:
    run, folder = make_following(tmp_path, until=1)
    save_weights(folder / "step_1.safetensors")
    run.following.mkdir()  # so that no file gets its place
    assert finish(run).is_complete and (run.path / "evaluated").read_text().split() == ["1"]


@pytest.mark.skipif("TARMAC_NANOVLM" not in os.environ, reason="TARMAC_NANOVLM names no sources of nanoVLM")
def test_nano_vlm_reads_the_results_by_its_own_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = Path(os.environ["TARMAC_NANOVLM"], "train.py").read_text()
    found = re.search(r"^ *eval_results_dir = .*?^ *continue$(?=\n\s*\n\s*# ALL RANKS)", text, re.M | re.S)
    assert found is not None
    evaluate = {"every": 40, "tasks": ["zero_shot"], "results_dir": str(tmp_path / "eval_results/mine")}
    run, folder = make_following(tmp_path, until=500, evaluate=evaluate)
    save_weights(folder / "step_500/model.safetensors")
    assert finish(run).is_complete
    logged: list[dict[str, float]] = []
    names: dict[str, Any] = {
        "os": os,
        "re": re,
        "json": json,
        "run_name": "mine",
        "logged_eval_steps": set(),
        "global_step": 600,
        "lmms_eval_step": "lmms_eval_step",
        "run": SimpleNamespace(log=lambda values, step: logged.append(values)),
    }
    monkeypatch.chdir(tmp_path)
    exec(textwrap.dedent(found[0]), names)
    assert logged == [{"lmms_eval/zero_shot_top1": 5.0, "lmms_eval_step": 500}]
