"""A CLIP model that has learnt the digits in seconds, as a judge of captions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model

from tasks.dataset.version import versions
from tasks.loader.indexed import IndexedReader
from tasks.models import recipes
from tests.conftest import made_once
from tests.models.examples import train_block

STEPS, BATCH = 200, 64


def train_judge(dataset: Path, weights: Path) -> None:
    """Train `tarmac/digits` on a built dataset and write its weights."""
    torch.manual_seed(0)
    recipe: Any = recipes.load_recipe(train_block("clip", name="tarmac/digits"))
    task = recipe.task(recipe.build_model())
    transform = recipe.transform(is_train=False)
    reader = IndexedReader(versions.current(dataset), "train")
    samples = [transform(reader.read(row).members, None) for row in range(len(reader))]
    images, texts = (torch.stack([one[name] for one in samples]) for name in ("image", "text"))
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=STEPS)
    for _ in range(STEPS):
        rows = torch.randint(len(images), (BATCH,))
        loss = task({"image": images[rows], "text": texts[rows]})
        optimizer.zero_grad()
        (loss.sum / loss.weight).backward()
        optimizer.step()
        schedule.step()
    save_model(task.model, str(weights))


@pytest.fixture(scope="session")
def judge(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of the judge."""
    folder = made_once(
        tmp_path_factory, "judge", lambda place: train_judge(digits_dataset, place / "judge.safetensors")
    )
    return folder / "judge.safetensors"
