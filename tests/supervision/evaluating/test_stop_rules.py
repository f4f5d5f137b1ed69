"""A rule of `evaluate.stop_when` ends a training early as a success, until a person resumes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from flows import cli
from flows.commands.status import status as status_command
from tasks.core.errors import UsageError, Withdrawn
from tasks.core.files import read_json
from tasks.core.lock import Lease
from tasks.runs import record
from tasks.runs.run_findings import read_findings
from tasks.supervision import launch, stopping
from tasks.supervision.status import look_at_run
from tests.supervision.fakes import make_run
from tests.supervision.test_agent import assert_undisturbed, finish, rank_of, wait_for


def blocks(**rule: Any) -> dict[str, Any]:
    rules = {"stop_when": {"metric": "zero_shot_top1", **rule}}
    return {"evaluate": {"every": 10, "tasks": ["zero_shot"], **rules}}


def test_a_training_that_gets_no_better_is_stopped_and_completed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its evaluations are done, the same start finds nothing to do, and `resume` goes on."""
    behaviour = {"top1": 0.5, "evaluation_s": 0.0, "waits_to_be_stopped_at": 25}
    run = make_run(tmp_path, behaviour, **blocks(no_better_for=1))
    status = finish(run)
    assert status.state == "cancelled" and status.is_complete and status.record.stopped_early
    assert "zero_shot_top1 is no better than 0.500 at step 10 for 1 values" in status.reason
    assert status.checkpoints[-1] < 40 and not run.stop.exists()
    (finding,) = read_findings(run)
    assert finding["code"] == "score.plateau" and finding["where"]["metric"] == "zero_shot_top1"
    assert read_json(run.exit(1))["stop"]["who"] == "rule"
    assert launch.start_or_adopt(run).is_up_to_date
    status_command(runs=run.path.parent)
    assert "NEEDS YOU" not in capsys.readouterr().out

    with Lease(run.lease):
        record.save_record(run, record.load_record(run).having(stopped_early=False))
    (run.path / "fake.json").write_text('{"evaluation_s": 0.0, "step_s": 0.02}')
    status = finish(run)
    assert status.state == "succeeded" and status.is_complete and status.reason == ""


@pytest.mark.proof
def test_a_rule_that_only_reports_ends_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"evaluation_s": 0.0, "step_s": 0.1}, **blocks(below=0.15, then="report"))
    finish(run)
    assert_undisturbed(run)
    (finding,) = read_findings(run)
    assert finding["code"] == "score.limit" and finding["evidence"]["what"].startswith(
        "zero_shot_top1 is 0.100, below 0.150"
    )


def test_a_rule_may_be_about_a_row_of_metrics(tmp_path: Path) -> None:
    rule = {"metric": "train/loss", "below": 0.1}
    run = make_run(
        tmp_path, {"step_s": 0.3}, evaluate={"every": 40, "tasks": ["zero_shot"], "stop_when": rule}
    )
    status = finish(run)
    assert status.record.stopped_early and 11 <= status.checkpoints[-1] < 40
    assert "train/loss is 0.0909, below 0.100, at step 11" in status.reason


LOSS_RULE = {"metric": "train/loss", "mode": "max", "no_better_for": 25}
"""A rule that the fake training, whose loss only falls, meets once, from step 26 on."""


@pytest.mark.proof
def test_evaluations_of_a_training_that_a_rule_stopped_can_be_cancelled(tmp_path: Path) -> None:
    asked = {"every": 10, "tasks": ["zero_shot"], "stop_when": LOSS_RULE}
    run = make_run(tmp_path, {"evaluation_s": 600.0, "step_s": 0.3}, evaluate=asked)
    launch.start_or_adopt(run)
    wait_for(lambda: look_at_run(run).record.stopped_early and (run.path / "evaluated").exists())
    assert not stopping.end(run, "enough", patience_s=20.0).forced
    with pytest.raises(Withdrawn, match="its evaluations were cancelled: enough"):
        launch.wait_for_evaluations(run)
    (run.path / "fake.json").write_text('{"evaluation_s": 0.0}')
    status = finish(run)
    assert status.is_complete and status.record.stopped_early and status.stopped is None


@pytest.mark.proof
def test_a_stop_is_ordered_though_its_finding_cannot_be_written_for_a_while(tmp_path: Path) -> None:
    asked = {"every": 10, "tasks": ["zero_shot"], "stop_when": LOSS_RULE}
    run = make_run(tmp_path, {"step_s": 0.3, "evaluation_s": 5.0}, evaluate=asked)
    run.findings.symlink_to(tmp_path / "away" / "findings.jsonl")
    launch.start_or_adopt(run)
    assert launch.wait_for_training(run).record.stopped_early
    (tmp_path / "away").mkdir()
    assert launch.wait_for_evaluations(run).is_complete and len(read_findings(run)) == 1


@pytest.mark.proof
def test_a_stop_outlives_the_agent_that_ordered_it(tmp_path: Path) -> None:
    """Whoever follows a killed agent orders the stop that its training did not come to obey."""
    asked = {"every": 40, "tasks": ["zero_shot"], "stop_when": LOSS_RULE}
    run = make_run(tmp_path, {"step_s": 0.2, "deaf": True}, evaluate=asked)
    launch.start_or_adopt(run)
    wait_for(lambda: run.stop.exists() and run.findings.exists())
    psutil.Process(record.load_record(run).attempts[-1].pid).kill()
    wait_for(lambda: not look_at_run(run).agent_is_alive)
    (run.path / "fake.json").write_text('{"step_s": 0.3}')
    status = finish(run)
    assert status.record.stopped_early and status.is_complete and status.checkpoints[-1] < 40
    with Lease(run.lease):
        record.save_record(run, record.load_record(run).having(stopped_early=False))
    assert finish(run).state == "succeeded", "a person may still have it go on"


@pytest.mark.proof
def test_a_person_may_cancel_a_run_that_a_rule_is_stopping(tmp_path: Path) -> None:
    """The evaluations end as soon as the order does that spares them."""
    asked = {"every": 10, "tasks": ["zero_shot"], "stop_when": LOSS_RULE}
    behaviour = {"evaluation_s": 600.0, "step_s": 0.3, "deaf": True, "stop_grace_s": 12.0}
    run = make_run(tmp_path, behaviour, train={"steps": 400}, evaluate=asked)
    launch.start_or_adopt(run)
    wait_for(lambda: run.stop.exists() and (run.path / "evaluated").exists())
    stopping.cancel(run, "enough")
    wait_for(lambda: "its job was ended with the run" in run.ledger.read_text())
    assert rank_of(run).is_alive()
    with pytest.raises(Withdrawn, match="enough; the training did not obey in time"):
        launch.wait_for_training(run)
    status = launch.wait_for_evaluations(run)
    assert status.state == "cancelled" and not status.record.stopped_early


def test_the_best_by_each_of_several_metrics_has_a_link(tmp_path: Path) -> None:
    further = [{"metric": "zero_shot_top1", "mode": "min"}, "zero_shot_top5"]
    asked = {"every": 10, "tasks": ["zero_shot"], "best": "zero_shot_top1", "best_by": further}
    run = make_run(tmp_path, evaluate=asked, train={"keep": {"latest": 1, "best": 1}})
    finish(run)
    assert run.best.readlink().name == "step_00000040"
    assert run.best_by("zero_shot_top1").readlink().name == "step_00000010", "and train.keep keeps it"
    assert not run.best_by("zero_shot_top5").exists(), "it has no result"
    assert look_at_run(run).checkpoints == [10, 40]


def test_a_rule_about_a_metric_that_nothing_gives_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    given = (Path(cli.__file__).parents[1] / "configs" / "digits-clip.yaml").read_text()
    assert "tasks: [zero_shot]" in given
    rule = "tasks: [zero_shot], stop_when: {metric: zero_shot_top7, no_better_for: 2}"
    config.write_text(given.replace("tasks: [zero_shot]", rule))
    from tasks.core.config import load_config
    from tasks.evaluation.evaluators import check_tasks

    with pytest.raises(UsageError, match=r"evaluate.stop_when: .*'zero_shot_top7'; did you mean"):
        check_tasks(load_config(config, []))
