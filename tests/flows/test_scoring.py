"""`tarmac score`: what a user sees of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model

from flows.cli import main
from tasks.models import recipes
from tests.dataset import raw
from tests.flows.birds import COUNT, output_of, published
from tests.models.examples import train_block

BLOCK = "score: {model: {name: tarmac/digits, pretrained: judge.safetensors}, semdedup: {threshold: 0.9}}\n"


@pytest.fixture
def scored(birds: Path) -> Path:
    """The project with a score block, whose model has random weights; it is built."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = recipes.load_recipe(train_block("clip", name="tarmac/digits")).build_model()
    save_model(model, str(birds / "judge.safetensors"))
    config = birds / "birds.yaml"
    config.write_text(config.read_text() + BLOCK)
    published("birds.yaml")
    return birds


def test_a_new_score_is_shown_with_what_to_do_next(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "birds.yaml"]) == 0
    shown = capsys.readouterr()
    assert f"✓ score     {COUNT} samples scored (" in shown.err
    for line in (
        "  clip_score  lowest ",
        "    other captions of the same shard  median ",
        "    lowest  00",
        "    highest 00",
        "  duplicate_similarity  ",
        "! captions.misaligned: ",
        "    fix      look at some: either the model knows nothing of such data",
        "  scores  data/birds/scores/tarmac-digits-",
    ):
        assert line in shown.out, line
    assert main(["score", "birds.yaml"]) == 0
    assert f"✓ score     0 samples scored, {COUNT} had scores" in capsys.readouterr().err


def test_json_is_one_object(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(output_of(capsys, "score", "birds.yaml", "--json"))
    assert facts["ok"] is True and facts["samples"] == facts["scored"] == facts["computed"] == COUNT
    assert [finding["code"] for finding in facts["findings"]] == ["captions.misaligned"]
    assert sum(facts["heights"]) == COUNT and len(facts["edges"]) == len(facts["heights"]) + 1
    assert facts["lowest"][0]["key"].endswith(".png") and set(facts["duplicates"]) == {
        "0.9",
        "0.95",
        "0.98",
        "0.99",
    }
    assert Path(facts["folder"]).is_dir() and facts["model"].startswith("tarmac-digits-")


def test_private_samples_are_not_named(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ((), ("--json",)):
        assert main(["score", "birds.yaml", "--set", "dataset.private=true", *form]) == 0
        shown = capsys.readouterr()
        assert ".png" not in shown.out + shown.err and "captions.misaligned" in shown.out


def test_a_build_names_what_has_no_score_yet(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = scored / "birds.yaml"
    assert main(["score", "birds.yaml"]) == 0
    config.write_text(config.read_text().replace("shard:", "filter: {clip_score: -1}\n  shard:"))
    (scored / "birds/0007.png").write_bytes(raw.png(7007))
    published("birds.yaml")
    capsys.readouterr()
    shown = output_of(capsys, "build", "birds.yaml")
    line = "! 1 sample without clip_score stays: tarmac score CONFIG scores what lacks it, then build again"
    assert line in shown.splitlines()
    assert json.loads(output_of(capsys, "build", "birds.yaml", "--json"))["unscored"] == 1
    assert main(["score", "birds.yaml"]) == 0
    published("birds.yaml")
    capsys.readouterr()
    assert "without clip_score" not in output_of(capsys, "build", "birds.yaml")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["score=null"], "✗ score: is required: it names the model, such as "),
        (["score.model.pretrained=gone.pt"], "✗ score.model.pretrained: there is no file gone.pt; "),
        (["score.batch=3"], "score.batch"),
    ],
)
def test_a_mistake_is_one_line(
    scored: Path, changes: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for change in changes for word in ("--set", change)]
    assert main(["score", "birds.yaml", *given]) == 2
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error


def test_conversations_have_no_captions_to_score(scored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    volumes = Path("ct.yaml")
    raw.volumes(Path("scans"), 4)
    volumes.write_text(
        "name: ct\n"
        "dataset:\n"
        "  output: data/ct\n"
        "  modality: volume_report\n"
        "  source: {kind: npz, path: scans, reports: {path: reports.csv, key: VolumeName, text: [Findings]}}\n"
        + BLOCK
    )
    published("ct.yaml")
    assert main(["score", "ct.yaml"]) == 2
    says = (
        "✗ dataset.modality: tarmac score compares pictures with captions, which volume_report has none of\n"
    )
    assert capsys.readouterr().err.endswith(says)


def test_the_command_is_listed_with_the_datasets(capsys: pytest.CaptureFixture[str]) -> None:
    shown = output_of(capsys, "--help")
    listed = shown[shown.index("Datasets") : shown.index("Runs")]
    assert "score" in listed and "Have a CLIP model judge" in listed
