"""The whole pipeline with a training of two ranks, as a person starts it: one command, one report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.core.files import read_json
from tasks.core.process import available_cores
from tests.pipeline.conftest import make_project
from tests.pipeline.evidence import assert_wandb_holds_everything_once, results

pytestmark = pytest.mark.proof
RUN = ("run", "configs/digits-clip.yaml", "--set", "engine.train.ranks=2")
SHORT = ("train.steps=60", "train.checkpoint_every=30", "evaluate.every=30", "train.threads=1")


def test_two_ranks_from_raw_digits_to_a_report(
    tmp_path: Path, raw_digits: Path, no_server: dict[str, str]
) -> None:
    project = make_project(tmp_path / "project", no_server, raw_digits, *SHORT)
    done = project.tarmac(*RUN)
    assert done.returncode == 0, done.stderr
    print(done.stderr, done.stdout)
    ended = read_json(project.run / "attempts/1/exit.json")
    assert (ended["outcome"], ended["ranks"], ended["step"]) == ("succeeded", 2, 60)
    tried = [one["workers"] for one in read_json(project.run / "loader.json")["measurements"]]
    assert max(tried) <= max(available_cores() // 2, 1), "a rank has its share of the cores"
    assert {"rank_0.log", "rank_1.log"} <= {log.name for log in project.run.glob("attempts/1/logs/*")}
    assert set(results(project.run)) == {"step_30/zero_shot", "step_60/zero_shot"}
    assert (project.run / "report.html").exists()
    assert_wandb_holds_everything_once(project.run)

    again = project.tarmac("run", "configs/digits-clip.yaml")
    assert again.returncode == 0, again.stderr
    assert len(read_json(project.run / "run.json")["attempts"]) == 1, "one rank would train the same run"
