"""What goes wrong beside a training does not end it, and what ends the agent is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.core.files import read_json, read_lines
from tasks.runs import ledger
from tasks.runs.folder import RunFolder
from tasks.supervision import launch
from tasks.supervision.evaluating import result_files
from tasks.supervision.evaluating.result_files import UnusableResults
from tasks.supervision.status import look_at_run
from tasks.supervision.tracking import gathering
from tests.supervision import fakes
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import assert_undisturbed, finish, rows, wait_for


def agent_log(run: RunFolder) -> str:
    return "".join(path.read_text() for path in run.attempts.glob("*/logs/agent/*_log.out"))


def test_a_torn_summary_is_moved_aside_and_the_run_is_completed(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"evaluation_s": 0.0}, evaluate={"every": 20, "tasks": ["zero_shot"]})
    run.eval_results.mkdir()
    run.eval_result(20).write_text('{"global_step": 20, "resu')
    finish(run)
    assert_undisturbed(run)
    aside = run.eval_results / "step_20.json.unusable"
    assert aside.read_text() == '{"global_step": 20, "resu'
    (finding,) = read_lines(run.findings)[0]
    assert (finding["code"], finding["where"]) == ("result.invalid", {"file": "eval_results/step_20.json"})
    assert "torn" in finding["evidence"]["what"]


def test_a_result_that_appears_while_it_is_looked_for_is_missing_again_once_it_is_deleted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "result.json"
    appears = True

    def is_there(path: Path) -> bool:
        if appears:
            path.touch()
        return path.exists()

    known = result_files.once_per_version(is_there)
    assert known(path), "it came between the look at its version and the reading"
    appears = False
    path.unlink()
    assert not known(path)


@pytest.mark.proof
def test_an_error_of_the_file_system_beside_a_training_does_not_end_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"evaluation_s": 0.0}, evaluate={"every": 20, "tasks": ["zero_shot"]})
    run.eval_results.write_text("a file where the folder should be")
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    assert rows(run) == 40
    assert look_at_run(run).agent_is_alive, "it tries on"
    wait_for(lambda: "the evaluations: FileExistsError" in agent_log(run))
    run.eval_results.unlink()
    launch.wait_for_evaluations(run)
    assert_undisturbed(run)


def test_an_agent_that_fails_unexpectedly_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.rank_log(1).mkdir(parents=True)
    launch.start_or_adopt(run)
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    status = look_at_run(run)
    assert (status.state, status.record.attempts[-1].outcome) == ("failed", "failed")
    assert "its agent failed (IsADirectoryError: " in status.reason


FOREIGN: dict[str, tuple[str, str]] = {
    "torn": ('{"task": "x", "st', "torn"),
    "empty": ("", "torn or not JSON"),
    "wrong_type": (json.dumps({"metrics": {"top1": "high"}}), "metrics.top1: "),
    "no_metrics": (json.dumps({"metrics": {}}), "metrics: is empty"),
    "other_step": (json.dumps({"step": 30}), "it is about other_step of step 30"),
}


def foreign(run: RunFolder, name: str, text: str) -> Path:
    """A file of another program's; JSON is completed to what CONTRACTS lists."""
    whole: dict[str, Any] = {
        "task": name,
        "step": 700,
        "checkpoint": "elsewhere",
        "metrics": {"top1": 0.5},
        "intervals": {},
        "samples": 10,
        "seconds": 1.0,
        "versions": {},
    }
    path = run.evaluation(700, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**whole, **json.loads(text)}) if text.endswith("}") else text)
    return path


def test_results_of_others_are_gathered_or_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, track={"mode": "offline"})
    for name, (text, _) in FOREIGN.items():
        foreign(run, name, text)
    foreign(run, "sound", "{}")
    foreign(run, "not_finite", '{"metrics": {"top1": NaN, "top5": 0.9}}')
    run.eval_results.mkdir()
    run.eval_result(700).write_text('{"global_step": 700, "results": {"mmstar_average": 0.41}}')
    run.eval_result(800).write_text('{"global_step": 800, "res')
    found = gathering.results_of(run)
    assert list(found) == [(700, "not_finite"), (700, "sound")]
    faults = gathering.faults(run)
    assert "evaluations/step_700/not_finite.json: metrics.top1: not finite, so it is null" in faults
    assert len(faults) == len(FOREIGN) + 2 and any(
        line.startswith("eval_results/step_800.json: ") for line in faults
    )
    for name, (_, why) in FOREIGN.items():
        assert any(
            line.startswith(f"evaluations/step_700/{name}.json: ") and why in line for line in faults
        ), faults


def test_what_stays_unusable_is_moved_aside_and_what_is_still_written_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)
    path = foreign(run, "torn", '{"ta')
    sound = foreign(run, "sound", "{}")
    found = UnusableResults(run)
    found.look()
    monkeypatch.setattr(result_files, "SETTLED_S", 0.0)
    path.write_text('{"task": ')
    found.look()
    assert path.exists() and not found.take(), "it is still being written"
    found.look()
    assert not path.exists() and sound.exists()
    assert path.with_name("torn.json.unusable").read_text() == '{"task": '
    assert [one.where["file"] for one in found.take()] == ["evaluations/step_700/torn.json"]
    assert gathering.faults(run) == [
        "evaluations/step_700/torn.json.unusable: it was no result and is moved aside"
    ]


def test_lines_that_are_no_entries_of_the_ledger_are_skipped(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    entry = {
        "uid": "u",
        "step": 40,
        "task": "zero_shot",
        "state": "done",
        "job": None,
        "attempt": 1,
        "at": 1.0,
    }
    lines = [{**entry, "step": [40]}, {**entry, "task": None}, {**entry, "at": "now"}, entry, {"uid": 7}]
    run.ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [one.step for one in ledger.read_ledger(run.ledger)] == [40]
    assert look_at_run(run).evaluations[0].step == 40
    fakes.save(run, 40, b"weights")
    assert read_json(run.record)["state"] == "planned"
