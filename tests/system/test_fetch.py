"""Trainings on what was fetched ahead, beside a hub that answers nobody: neither a library nor a rank asks it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.core.schema import Config
from tasks.dataset.version import versions
from tasks.loader.settings import LoaderSettings, write_settings
from tasks.models import hub
from tasks.runs.plan import plan
from tasks.supervision import launch
from tests.conftest import digits_config
from tests.hub import StandInHub, served
from tests.models.test_ct_clip import bert
from tests.models.test_vlm import TEXT

__all__ = ["served"]
pytestmark = pytest.mark.system
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
BUILD = """
import sys
from tasks.core.schema import Train
from tasks.models import recipes
recipe = recipes.load_recipe(Train.model_validate_json(sys.argv[1]))
recipe.transform(True)
recipe.build_model(), recipe.build_model(pretrained=False)
"""


def model_folder(folder: Path, kind: str) -> Path:
    """A tiny model of transformers with all files that the hub would have of it."""
    import transformers

    folder.mkdir()
    if kind == "text":
        bert(folder, "bert")
    elif kind == "vision":
        shape = transformers.SiglipVisionConfig(**SIZES, image_size=16, patch_size=4)
        transformers.SiglipVisionModel(shape).save_pretrained(folder)
        means = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
        (folder / "preprocessor_config.json").write_text(json.dumps(means))
    else:
        shape = transformers.LlamaConfig(**SIZES, vocab_size=300, num_key_value_heads=1)
        transformers.LlamaForCausalLM(shape).save_pretrained(folder, max_shard_size="20kB")
        TEXT.tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_run_trains_and_is_evaluated_without_asking_the_hub(
    served: StandInHub,
    tmp_path: Path,
    raw_digits: Path,
    digits_dataset: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    served.serve("acme/words", model_folder(tmp_path / "text", "text"))
    text = {"hf_model_name": "acme/words", "hf_tokenizer_name": "acme/words", "hf_proj_type": "mlp"}
    text |= {"hf_pooler_type": "mean_pooler", "context_length": 8}
    vision = {"image_size": 16, "layers": 1, "width": 64, "patch_size": 4}
    model = {"config": {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}}
    config = digits_config(raw_digits, tmp_path).model_dump(mode="json", by_alias=True)
    config["train"] |= {"model": model, "steps": 8, "checkpoint_every": 8, "warmup": 1, "threads": 1}
    config["evaluate"] |= {"every": 8}
    config["track"] |= {"mode": "disabled"}
    file = tmp_path / "c.yaml"
    file.write_text(json.dumps(config))
    assert main(["fetch", str(file)]) == 0
    assert "acme/words" in capsys.readouterr().out
    served.asked.clear()

    monkeypatch.setattr(launch, "AGENT", "tasks.supervision.agent:main")
    run = plan(Config.model_validate(config), versions.resolve(digits_dataset))
    write_settings(run.loader, LoaderSettings(workers=1, prefetch=2, reason="a test", measurements=[]))
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    status = launch.wait_for_evaluations(run)
    assert status.is_complete and served.asked == []


@pytest.mark.proof
@pytest.mark.parametrize("recipe", ["ct_clip", "vlm"])
def test_the_models_of_a_recipe_load_from_what_was_fetched(
    recipe: str, served: StandInHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The fetched files are all that transformers wants, of weights in several files too."""
    for kind in ("text",) if recipe == "ct_clip" else ("vision", "language"):
        served.serve(f"acme/{kind}", model_folder(tmp_path / kind, kind))
    model: dict[str, Any] = {"vision": "acme/vision", "language": "acme/language", "pixel_shuffle": 2}
    if recipe == "ct_clip":
        model = {"vision": "tarmac/phantoms", "text": "acme/text"}
    train = {"recipe": recipe, "model": model, "batch_size": 4, "steps": 2, "lr": 0.1, "checkpoint_every": 2}
    source = {"kind": "chat", "path": "c.parquet"}
    dataset = {"output": "data", "modality": "chat", "source": source}
    config = {"name": "c", "runs": str(tmp_path / "runs"), "dataset": dataset, "train": train}
    file = tmp_path / "c.yaml"
    file.write_text(json.dumps(config))
    assert main(["fetch", str(file)]) == 0, capsys.readouterr()
    assert ("model.safetensors.index.json" in os.listdir(tmp_path / "language")) if recipe == "vlm" else True
    served.asked.clear()
    assert not list(hub.lacks(hub.needs(Config.model_validate(config)), hub.read_lock(tmp_path / "runs")))
    environment = {**os.environ, hub.OFFLINE: "1"}
    command = [sys.executable, "-c", BUILD, json.dumps(train)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert served.asked == []
