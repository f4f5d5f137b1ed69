"""What reinforcement is for: at equal steps of equal data a student of teachers is the better model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.core.config import load_config
from tasks.dataset.building.builder import build
from tasks.dataset.examples import DIGITS, write_example
from tasks.evaluation.checkpoint import Extracting
from tasks.evaluation.kinds.zero_shot import TEMPLATES, ClassReader, class_embeddings
from tasks.loader.feed import Data, Feed
from tasks.models import recipes
from tasks.training.devices import Device
from tasks.training.step import Step
from tests.conftest import ROOT

STEPS = 150
PLAIN = ("train.recipe=clip", "train.model={name: tarmac/digits}")


def accuracy(version: Path, changes: tuple[str, ...]) -> float:
    """Zero-shot, on held-out digits, after some steps of the config that is shipped."""
    short = (f"train.steps={STEPS}", f"train.checkpoint_every={STEPS}", "evaluate=null")
    config = load_config(ROOT / "configs/reinforced-clip.yaml", [*short, *changes])
    assert config.train is not None
    recipe = recipes.load_recipe(config.train)
    torch.manual_seed(config.train.seed)
    step = Step(recipe, recipe.build_model(), config.train, Device(torch.device("cpu"), "fp32"))
    feed = Feed.of(config, [Data(version)], recipe)
    with feed.train() as batches:
        for number in range(STEPS):
            step(number, next(batches))
    found: list[bool] = []
    labelled = Extracting(recipe.transform(is_train=False), ClassReader("label"))
    with step.judging(), feed.split("val", labelled) as batches:
        embedder: Any = recipe.task(step.model)
        prompts = embedder.embed_texts([one.replace("{}", name) for name in DIGITS for one in TEMPLATES])
        classes = class_embeddings(prompts.numpy(), len(DIGITS))
        for batch in batches:
            nearest = np.argmax(embedder.embed_images(batch).numpy() @ classes.T, axis=1)
            found += [
                DIGITS[place] == label for place, label in zip(nearest, batch["extracted"], strict=True)
            ]
    return float(np.mean(found))


@pytest.mark.proof
def test_a_student_of_teachers_is_better_than_one_of_the_captions_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    write_example("reinforced", Path("data/raw/reinforced"))
    version = build(load_config(ROOT / "configs/reinforced-clip.yaml", [])).version
    taught, plain = accuracy(version, ()), accuracy(version, PLAIN)
    assert taught > plain + 0.1, f"{taught:.3f} by teachers, {plain:.3f} by captions"
    print(f"after {STEPS} steps: {taught:.3f} by teachers, {plain:.3f} by captions")
