"""Another trainer's checkpoints, evaluated while it trains: open_clip's own, by the command that a person types."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.files import read_json, write_json
from tasks.models.clip.clip_options import DIGITS, model_config
from tasks.runs import ledger
from tasks.runs.folder import RunFolder
from tasks.runs.followed import origins_of
from tests.pipeline.conftest import Project, make_project

CONFIG = "configs/digits-clip.yaml"
EPOCHS = 3


def train_open_clip(folder: Path, dataset: Path) -> subprocess.Popen[bytes]:
    """open_clip's trainer on a built dataset, without Tarmac."""
    write_json(
        folder / "model/open_clip_config.json", {"model_cfg": model_config(DIGITS), "preprocess_cfg": {}}
    )
    shards = len(list((dataset / "current/train").glob("*.tar")))
    options = {
        "--train-data": f"{dataset}/current/train/{{000000..{shards - 1:06d}}}.tar",
        "--dataset-type": "webdataset",
        "--train-num-samples": "1536",
        "--epochs": str(EPOCHS),
        "--batch-size": "64",
        "--workers": "1",
        "--model": f"local-dir:{folder}/model",
        "--lr": "1e-3",
        "--warmup": "30",
        "--precision": "fp32",
        "--logs": str(folder / "logs"),
        "--name": "mine",
    }
    words = [word for pair in options.items() for word in pair]
    command = [sys.executable, "-m", "open_clip_train.main", *words]
    with (folder / "train.log").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)


@pytest.fixture
def project(
    tmp_path: Path, no_server: dict[str, str], raw_digits: Path, digits_dataset: Path
) -> Iterator[Project]:
    made = make_project(tmp_path / "project", no_server, raw_digits, f"dataset.output={digits_dataset}")
    (made.path / "logs/mine").mkdir(parents=True)
    yield made
    made.kill_everything()


@pytest.mark.system
@pytest.mark.proof
def test_a_training_of_open_clips_is_followed_to_its_end_through_kills(
    project: Project, digits_dataset: Path
) -> None:
    training = train_open_clip(project.path, digits_dataset)
    try:
        words = ("evaluate", "--follow", "logs/mine", CONFIG)
        first = project.start(*words)
        project.wait_for("an evaluation", lambda: project.has("runs/*/evaluations/step_1/.*.lease"), first)
        project.kill_everything()  # the command, the agent and the job
        first.communicate()
        done = project.tarmac(*words)
        assert done.returncode == 0, done.stderr
        assert training.wait(60) == 0, "it was left alone"
    finally:
        training.kill()
    run = RunFolder(project.run)
    origins = origins_of(run)
    assert {step: origin.path.name for step, origin in origins.items()} == {
        epoch: f"epoch_{epoch}.pt" for epoch in range(1, EPOCHS + 1)
    }
    scores = {step: read_json(run.eval_result(step))["results"]["zero_shot_top1"] for step in origins}
    assert scores[EPOCHS] > 0.2 and scores[EPOCHS] > scores[1], "it learns"
    finals = [(one.step, one.state) for one in ledger.read_ledger(run.ledger) if one.is_final]
    assert sorted(finals) == [(epoch, "done") for epoch in range(1, EPOCHS + 1)]
    assert f"     {EPOCHS}  epoch_{EPOCHS}.pt  " in done.stdout and f"{scores[EPOCHS]:.3f}" in done.stdout
    assert f"report  {run.report.relative_to(project.path)}" in done.stdout and run.report.exists()
    assert "epoch_3.pt as step 3" in run.report.read_text()
    again = project.tarmac(*words, "--json")
    answer = json.loads(again.stdout)
    assert again.returncode == 0 and answer["state"] == "succeeded" and not answer["stages"]
    assert [one["path"] for one in answer["checkpoints"]] == [str(origin.path) for origin in origins.values()]
    assert [one["metrics"]["top1"] for one in answer["scores"]] == list(scores.values())


@pytest.mark.proof
def test_one_checkpoint_is_evaluated_after_ctrl_c_too(project: Project, digits_dataset: Path) -> None:
    """Ctrl-C ends the watching; the command again finds the results, and Prefect is not started for it."""
    training = train_open_clip(project.path, digits_dataset)
    file = "logs/mine/checkpoints/epoch_1.pt"
    project.wait_for("an epoch", lambda: project.has("logs/mine/checkpoints/epoch_2.pt"), training)  # type: ignore[arg-type]
    training.kill()
    words = ("evaluate", file, CONFIG)
    watching = project.start(*words)
    project.wait_for("an evaluation", lambda: project.has("runs/*/evaluations/step_1/.*.lease"), watching)
    watching.send_signal(signal.SIGINT)
    _, shown = watching.communicate(timeout=60)
    assert watching.returncode == 130 and "Following goes on as job" in shown
    done = project.tarmac(*words)
    assert done.returncode == 0, done.stderr
    assert "1  epoch_1.pt" in done.stdout
    again = project.tarmac(*words)
    assert "up to date: each checkpoint with its results" in again.stderr and "Prefect" not in again.stderr
    assert len(ledger.read_ledger(RunFolder(project.run).ledger)) <= 4
