"""What would end a training at its start is refused by whoever is asked first, in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.operate import start
from tasks.core.config import load_config
from tasks.dataset.version.versions import resolve
from tasks.models import hub
from tasks.runs.plan import locate
from tests.flows.birds import make_project, output_of, published
from tests.supervision.fakes import save

CLOSED = "http://127.0.0.1:9"
"""Nobody answers there."""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """60 pictures, of which 51 are trained on, and no hub; the flows cannot be started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", CLOSED)
    monkeypatch.setattr(start, "flow", never)
    make_project(tmp_path)
    return tmp_path


def never(*arguments: Any, **named: Any) -> None:
    raise AssertionError("it should have been refused before")


def write(batch_size: int = 8, recipe: str = "clip", **model: Any) -> None:
    train = {"recipe": recipe, "model": model or {"name": "tarmac/digits"}, "batch_size": batch_size}
    train |= {"steps": 5, "lr": 0.1, "checkpoint_every": 5}
    text = Path("birds.yaml").read_text() + f"\ntrain: {json.dumps(train)}\ntrack: {{mode: disabled}}\n"
    Path("trained.yaml").write_text(text)


def refused(capsys: pytest.CaptureFixture[str], *commands: str, code: int = 2) -> str:
    """The one line that all of the commands end with."""
    lines = set()
    for command in commands:
        assert main([command, "trained.yaml"]) == code
        lines.add(capsys.readouterr().err.splitlines()[-1].removeprefix("✗ "))
    (line,) = lines
    return line


@pytest.mark.proof
def test_a_batch_larger_than_the_dataset_has_one_verdict(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(batch_size=61)
    line = refused(capsys, "plan", "run")
    assert "a batch takes 61 of 60 samples that there are" in line, "before the build"
    published("birds.yaml")
    write(batch_size=52)
    line = refused(capsys, "plan", "run", "train")
    assert line == (
        "train.batch_size: a batch takes 52 of 51 samples to train on, so it holds some twice: to the contrastive "
        "loss they are wrong pairs; take train.batch_size 25 or less, or build a larger dataset"
    )
    found = output_of(capsys, "preflight", "trained.yaml", code=1)
    assert "✗ worker.starved" in found and "a batch takes 52 of 51 samples" in found
    write(batch_size=51)
    assert "holds some twice" not in output_of(capsys, "plan", "trained.yaml")
    assert "✓ every worker" in output_of(capsys, "preflight", "trained.yaml")


def test_weights_that_nobody_knows_are_refused_before_the_build(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(name="ViT-B-32", pretrained="laion3b")
    line = refused(capsys, "plan", "run")
    assert line == (
        "train.model.pretrained: there is no file laion3b, and no weights of ViT-B-32 have that name; "
        "did you mean laion2b_e16?"
    )
    published("birds.yaml")
    assert refused(capsys, "plan", "run", "train") == line
    assert "did you mean laion2b_e16?" in output_of(capsys, "preflight", "trained.yaml", code=1)


def test_weights_that_the_hub_does_not_give_are_refused_before_the_build(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(name="ViT-B-32", pretrained="laion2b_s34b_b79k")
    line = refused(capsys, "run", code=1)
    assert line.startswith(f"train.model.pretrained: {CLOSED} does not serve laion/CLIP-ViT-B-32")
    printed = output_of(capsys, "plan", "trained.yaml")
    assert (
        "!         train.model.pretrained: weights of laion/CLIP-ViT-B-32-laion2B-s34B-b79K not on" in printed
    )
    assert "tarmac fetch trained.yaml" in printed
    published("birds.yaml")
    assert refused(capsys, "run", "train", code=1) == line


def test_a_run_that_has_a_checkpoint_starts_from_that(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published("birds.yaml")
    write(name="ViT-B-32", pretrained="laion2b_s34b_b79k")
    config = load_config(Path("trained.yaml"))
    run = locate(config, resolve(config.dataset.output))
    save(run, 5, b"weights")
    assert "!  " not in output_of(capsys, "plan", "trained.yaml")
    with pytest.raises(AssertionError, match="refused before"):
        main(["run", "trained.yaml"])


def test_weights_of_another_activation_are_refused_at_once(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """openai's for ViT-B-32 are those that most people have in mind."""
    write(name="ViT-B-32", pretrained="openai")
    assert "take name: ViT-B-32-quickgelu" in refused(capsys, "plan", "run", "preflight", "fetch")
    assert not hub.cache().exists()
