"""The configs of configs/fine-tune: they load and plan, and on the digits they keep and lose what their page says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.config import load_config
from tasks.dataset import examples
from tasks.models.recipes import check_recipe
from tests.conftest import ROOT
from tests.flows.birds import output_of
from tests.flows.test_full_size import LACKS, scans, tar

CONFIGS = ROOT / "configs/fine-tune"
PAGE = ROOT / "docs/fine-tuning.md"


def pictures(folder: Path) -> list[str]:
    source = f"{{kind: shards, path: {tar(folder / 'raw/birds', [{}, {}])}}}"
    return ["--set", f"dataset.source={source}"]


def clinic(folder: Path) -> list[str]:
    (folder / "weights.pt").write_bytes(b"of CT-CLIP")
    return [*scans(folder), "--set", f"train.model.pretrained={folder / 'weights.pt'}"]


STAND_INS: dict[str, tuple[Callable[[Path], list[str]], str, str]] = {
    "clip": (pictures, "general", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"),
    "ct-clip": (clinic, "ct_rate", "microsoft/BiomedVLP-CXR-BERT-specialized"),
}
"""By config: the raw files, the task on another dataset, and the repository of what is downloaded."""


@pytest.mark.parametrize("name", list(STAND_INS))
def test_it_plans(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    write, other, repository = STAND_INS[name]
    planned = output_of(capsys, "plan", str(CONFIGS / f"{name}.yaml"), *write(tmp_path))
    reported = [line for line in planned.splitlines() if line.startswith("!")]
    assert {found[1] for line in reported if (found := LACKS.match(line))} == {repository}
    (doubt,) = [line for line in reported if not LACKS.match(line)]
    assert f"evaluate.tasks: {other}: dataset: data/" in doubt and "build it before the training" in doubt
    assert "nothing was written; to do it: tarmac run" in planned


def test_each_begins_with_weights_whose_scores_are_taken_first() -> None:
    for path in CONFIGS.glob("*.yaml"):
        config = load_config(path)
        assert config.train is not None
        check_recipe(config.train)
        assert (config.evaluated_steps[0] == 0) == (path.stem != "digits-old"), path


def test_the_keys_that_a_comment_offers_are_keys(tmp_path: Path) -> None:
    text = (CONFIGS / "clip.yaml").read_text()
    offered = [line.strip("# ").partition("  #")[0] for line in text.splitlines() if line.startswith("#   ")]
    assert len(offered) == 4
    for line in offered:
        key, _, value = line.partition(": ")
        changes = [f"train.{key}={value}", *(["train.layer_decay=null"] if key == "lora" else [])]
        changes += ["train.lr={text: 1e-5, temperature: 1e-4}"] if key == "freeze" else []
        train = load_config(CONFIGS / "clip.yaml", changes).train
        assert train is not None and getattr(train, key)
        check_recipe(train)


TRIALS: dict[str, tuple[list[str], bool]] = {
    "as it stands": ([], True),
    "adapters": (["train.lora={rank: 4}"], False),
    "image tower frozen": (["train.freeze=[vision]"], False),
    "mixed": (["train.data=[{dataset: data/digits-new}, {dataset: data/digits-old}]"], False),
}
"""By what helps: the changes of configs/fine-tune/digits-new.yaml, and whether it forgets."""


@pytest.mark.proof
def test_digits_are_forgotten_and_kept_as_the_page_says(tmp_path: Path) -> None:
    examples.write_example("digits", tmp_path / "data/raw/digits")
    learned = run_of(tmp_path, "digits-old", "runs")
    shutil.copy(learned / "checkpoints/latest/model.safetensors", tmp_path / "digits-old.safetensors")
    scores = {}
    for name, (changes, forgets) in TRIALS.items():
        run = run_of(tmp_path, "digits-new", f"runs/{name.replace(' ', '_')}", *changes)
        codes = [json.loads(line)["code"] for line in (run / "findings.jsonl").read_text().splitlines()]
        assert codes.count("finetune.forgot") == forgets, (name, codes)
        found = {
            step: json.loads((run / f"eval_results/step_{step}.json").read_text())["results"]
            for step in (0, 100, 200)
        }
        assert found[0]["old_top1"] > 0.9 > 0.5 > found[0]["zero_shot_top1"], "it knows the old ones only"
        assert found[200]["zero_shot_top1"] > 0.5, f"{name}: it learns"
        scores[name] = found[200]["old_top1"]
    assert scores["as it stands"] < 0.7 < 0.85 < min(scores[name] for name in list(TRIALS)[1:])


def run_of(folder: Path, config: str, runs: str, *changes: str) -> Path:
    """The folder of the run that the command makes."""
    words = [sys.executable, "-m", "flows.cli", "run", str(CONFIGS / f"{config}.yaml")]
    given = [word for change in (f"runs={runs}", *changes) for word in ("--set", change)]
    done = subprocess.run(
        [*words, *given], cwd=folder, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (made,) = (folder / runs).glob(f"{config}-*")
    return made
