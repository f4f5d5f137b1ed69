"""What every recipe must keep. A new one stands in the table and gives an example of its model and a sample here."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tasks.core.errors import UsageError
from tasks.core.schema import Train
from tasks.models import recipes
from tasks.models.recipes import RECIPES, Recipe


def picture(number: int) -> bytes:
    """40 x 40 grey clouds, others for each number."""
    clouds = np.random.default_rng(number).integers(0, 256, (5, 5), np.uint8)
    file = io.BytesIO()
    Image.fromarray(clouds).resize((40, 40), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


MODELS: dict[str, dict[str, Any]] = {"clip": {"name": "tarmac/digits"}}
SAMPLES: dict[str, list[dict[str, bytes]]] = {
    "clip": [{"png": picture(n), "txt": f"a photo of a {n}".encode()} for n in range(4)],
}


def train_block(recipe: str, **model: Any) -> Train:
    return Train.model_validate(
        {
            "recipe": recipe,
            "model": model or MODELS[recipe],
            "batch_size": 4,
            "steps": 2,
            "lr": 0.1,
            "checkpoint_every": 2,
        }
    )


@pytest.fixture(params=list(RECIPES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def recipe(name: str) -> Recipe:
    return recipes.load(train_block(name))


def batch_of(recipe: Recipe, name: str, *, is_train: bool = False) -> dict[str, Any]:
    samples = [recipe.transform(is_train)(sample, 5 if is_train else None) for sample in SAMPLES[name]]
    return {field: torch.stack([sample[field] for sample in samples]) for field in samples[0]}


def test_transform_is_a_function_of_sample_and_seed(recipe: Recipe, name: str) -> None:
    transform, sample = recipe.transform(True), SAMPLES[name][0]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, other = transform(sample, 1), transform(sample, 2)
    assert torch.equal(torch.rand(3), expected), "it may not draw from the training's own generator"
    again = pickle.loads(pickle.dumps(transform))(sample, 1)
    assert all(torch.equal(first[field], again[field]) for field in first)
    assert any(not torch.equal(first[field], other[field]) for field in first), (
        "training samples are augmented"
    )


def test_texts_are_told_apart_by_what_the_model_is_given(recipe: Recipe) -> None:
    same, again, other = recipe.tokenize(["A  Dog", "a dog", "a cat"])
    assert torch.equal(same, again) and not torch.equal(same, other)


def test_transform_for_judging_draws_nothing(recipe: Recipe, name: str) -> None:
    transform, sample = recipe.transform(False), SAMPLES[name][0]
    torch.manual_seed(1)
    first = transform(sample, None)
    torch.manual_seed(2)
    again = transform(sample, None)
    assert all(torch.equal(first[field], again[field]) for field in first)


def test_model_hangs_on_the_generator_alone(recipe: Recipe) -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([parameter.flatten() for parameter in recipe.build_model().parameters()]))
    same, again, other = models
    assert torch.equal(same, again) and not torch.equal(same, other)


def test_every_parameter_is_optimized_once_and_no_bias_decays(recipe: Recipe) -> None:
    model = recipe.build_model()
    groups = recipe.parameter_groups(model, weight_decay=0.3)
    torch.optim.AdamW(groups)  # refuses a parameter that stands in two groups
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in model.parameters()}
    for group in groups:
        assert all((p.ndim >= 2) == (group["weight_decay"] == 0.3) for p in group["params"])


def test_loss_reaches_every_parameter_and_falls(recipe: Recipe, name: str) -> None:
    torch.manual_seed(0)
    model, batch = recipe.build_model(), batch_of(recipe, name, is_train=True)
    optimizer = torch.optim.AdamW(recipe.parameter_groups(model, 0.0), lr=1e-3)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = recipe.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        recipe.after_step(model)
        losses.append(float(loss.detach()))
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert losses[-1] < 0.7 * losses[0]


def test_embeddings_share_one_space_of_unit_length(recipe: Recipe, name: str) -> None:
    model = recipe.build_model().eval()
    with torch.no_grad():
        images = recipe.embed_images(model, batch_of(recipe, name))
        texts = recipe.embed_texts(model, ["a cat", "a dog", "a cat"])
    assert images.shape[0] == 4 and texts.shape == (3, images.shape[1])
    for rows in (images, texts):
        assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows)), atol=1e-5)
    assert torch.allclose(texts[0], texts[2], atol=1e-6) and not torch.allclose(texts[0], texts[1])


def test_unknown_key_of_the_model_is_named(name: str) -> None:
    with pytest.raises(UsageError, match=r"train\.model\.nam: unknown key; did you mean name\?"):
        recipes.load(train_block(name, nam="x"))


def test_a_wrong_name_is_told_without_torch() -> None:
    script = (
        "import sys; from tasks.models import clip_config\n"
        "try: clip_config.check({'name': 'ViT-B-23'})\n"
        "except Exception as error: print(error, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("did you mean ViT-B-32? False\n"), done.stdout
