"""Runs with one checkpoint, of models that nobody trained: every weight is drawn, so that none is as it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tasks.core import config as configs
from tasks.core.files import link_atomic, write_json
from tasks.models import recipes
from tasks.runs.folder import RunFolder
from tasks.training import checkpoints
from tests.models.examples import MODELS

STEP = 40
MODALITIES = {"clip_reinforced": "reinforced", "vlm": "chat", "ct_clip": "volume_report"}


def run_of(folder: Path, recipe: str, **model: Any) -> RunFolder:
    """A run of this recipe in `folder`, whose newest and best checkpoint is of STEP."""
    values = {
        "name": recipe,
        "runs": str(folder),
        "dataset": {
            "output": str(folder / "data"),
            "modality": MODALITIES.get(recipe, "image_text"),
            "source": {"kind": "shards", "path": "/nowhere/*.tar"},
        },
        "train": {
            "recipe": recipe,
            "model": model or MODELS[recipe],
            "batch_size": 4,
            "steps": STEP,
            "lr": 0.1,
            "checkpoint_every": STEP,
        },
    }
    config = configs.validate(values, "test")
    run = RunFolder(folder / f"{recipe}-0123456789ab")
    run.checkpoints.mkdir(parents=True)
    write_json(run.record, {"id": "0123456789ab"})
    run.config.write_text(configs.dump(config))
    assert config.train is not None
    torch.manual_seed(7)
    made = recipes.load_recipe(config.train).build_model(pretrained=False)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    checkpoints.save_checkpoint(run, STEP, made, {})
    link_atomic(run.best, run.checkpoint(STEP).name)
    return run
