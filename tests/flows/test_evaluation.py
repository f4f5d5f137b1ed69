"""`tarmac evaluate` of what is no run: its mistakes in one line each, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows import cli
from tests.conftest import ROOT
from tests.trainers.handmade import save_weights, tear

CONFIG = str(ROOT / "configs/digits-clip.yaml")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_weights(tmp_path / "logs/mine/checkpoints/epoch_1.safetensors")
    tear(save_weights(tmp_path / "torn/step_2.safetensors"))
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.pt", CONFIG], "CHECKPOINT: there is no nowhere.pt"),
        (["logs/mine", CONFIG], "name one, such as logs/mine/checkpoints/epoch_1.safetensors"),
        (["--follow", "nowhere", CONFIG], "--follow: there is no nowhere; name the folder"),
        (
            ["--follow", "empty", CONFIG, "--set", "evaluate=null"],
            "evaluate: is required and missing; give tasks",
        ),
        (
            ["--follow", "empty", CONFIG, "--set", "evaluate.stop_when={metric: val/loss, above: 8}"],
            "evaluate.stop_when: metric val/loss is of a training of Tarmac's own; name one of evaluate.tasks",
        ),
        (["--follow", "empty", CONFIG, "--step", "3"], "--step: has an effect on a run only"),
        (["logs/mine", CONFIG, "--until-step", "3"], "--until-step: has an effect only with --follow"),
        (["abc", "--set", "train.lr=1"], "--set: has no effect on a run; give a CONFIG, too"),
        (["--follow", "empty", CONFIG, CONFIG], "--follow: takes the folder, and then one CONFIG alone"),
        (
            ["--follow", "empty", CONFIG, "--set", "dataset.output=data/none"],
            "dataset.output: data/none holds no version of a dataset; build it first: tarmac build",
        ),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], says: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", *words]) == 2
    shown = capsys.readouterr()
    assert says in shown.err and len(shown.err.splitlines()) == 1 and not shown.out
    assert not (project / "runs").exists(), "nothing was begun"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["torn/step_2.safetensors"], "CHECKPOINT: torn/step_2.safetensors: step_2.safetensors is torn: "),
        (
            ["logs/mine/checkpoints/epoch_1.safetensors"],
            "epoch_1.safetensors is of another model than train.model: positional_embedding is not there (it has w)",
        ),
        (["--follow", "logs/mine"], "epoch_1.safetensors is of another model than train.model: "),
    ],
)
def test_a_checkpoint_that_no_evaluation_could_load_is_refused_at_once(
    words: list[str], says: str, project: Path, digits_dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--set", f"dataset.output={digits_dataset}"]
    assert cli.main(["evaluate", *words, CONFIG, *given]) == 1
    shown = capsys.readouterr()
    assert says in shown.err and len(shown.err.splitlines()) == 1, shown.err
    assert not (project / "runs").exists() or not list((project / "runs").glob("*/run.json"))
