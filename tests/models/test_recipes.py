"""What every recipe must keep. A new one stands in the table and gives its examples in `examples`."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from tasks.core import config as configs
from tasks.core.errors import UsageError
from tasks.core.schema import Train
from tasks.core.schema.recipes import RECIPES
from tasks.core.schema.recipes import RecipeClasses as Row
from tasks.models import recipes
from tasks.models.recipes import Recipe
from tasks.models.task import ALL, Contrastive, Embedder
from tests.models import lengths
from tests.models.examples import MODELS, SAMPLES, TRAINED, UNAUGMENTED, batch_of, train_block

SIDE = 80
"""Samples of a contrast; no half or quarter of it is the width of a feature."""


@pytest.fixture(params=[*TRAINED, lengths.NAME])
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(RECIPES, lengths.NAME, Row(*lengths.ROW))
    return str(request.param)


@pytest.fixture
def recipe(name: str) -> Recipe:
    return recipes.load_recipe(train_block(name))


def are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(torch.as_tensor(value), torch.as_tensor(other[field])) for field, value in one.items()
    )


def test_transform_is_a_function_of_sample_and_seed(recipe: Recipe, name: str) -> None:
    transform, sample = recipe.transform(True), SAMPLES[name][0]
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, other = transform(sample, 1), transform(sample, 2)
    assert torch.equal(torch.rand(3), expected), "it may not draw from the training's own generator"
    again = pickle.loads(pickle.dumps(transform))(sample, 1)
    assert are_equal(first, again)
    assert are_equal(first, other) == (name in UNAUGMENTED)


def test_texts_are_told_apart_by_what_the_model_is_given(embedding: Recipe) -> None:
    same, again, other = embedder(embedding).tokenize(["A  Dog", "a dog", "a cat"])
    assert torch.equal(same, again) and not torch.equal(same, other)


def test_transform_for_judging_draws_nothing(recipe: Recipe, name: str) -> None:
    transform, sample = recipe.transform(False), SAMPLES[name][0]
    torch.manual_seed(1)
    first = transform(sample, None)
    torch.manual_seed(2)
    again = transform(sample, None)
    assert are_equal(first, again)


def test_model_hangs_on_the_generator_alone(recipe: Recipe) -> None:
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(torch.cat([parameter.flatten() for parameter in recipe.build_model().parameters()]))
    same, again, other = models
    assert torch.equal(same, again) and not torch.equal(same, other)


def test_every_parameter_and_module_is_in_a_part_and_no_bias_decays(recipe: Recipe, name: str) -> None:
    model = recipe.build_model()
    parts = recipes.options_type(name).parts
    assert {recipe.part_of(parameter) for parameter, _ in model.named_parameters()} == set(parts)
    assert {recipe.part_of(module) for module, _ in model.named_modules() if module} <= set(parts)
    for parameter, values in model.named_parameters():
        assert recipe.is_decayed(parameter, values) == (values.ndim >= 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"freeze": ["visoin"]}, r"train\.freeze: .* no part 'visoin'; did you mean vision\?"),
        (
            {"lr": {"vision": 1e-3, "text": 1e-3}},
            r"train\.lr: names parts of the model but lacks temperature",
        ),
        (
            {"freeze": ["text"], "warmup": {"vision": 1, "text": 2, "temperature": 3}},
            r"train\.warmup\.text: has no effect, because train\.freeze names text too",
        ),
    ],
)
def test_parts_that_a_model_has_not_are_told(changes: dict[str, Any], says: str) -> None:
    train = Train.model_validate({**train_block("clip").model_dump(), **changes})
    with pytest.raises(UsageError, match=says):
        recipes.check_recipe(train)


def test_loss_reaches_every_parameter_and_falls(recipe: Recipe, name: str) -> None:
    torch.manual_seed(0)
    train = train_block(name)
    model, batch = recipe.build_model(), batch_of(recipe, name, is_train=True)
    task = recipe.task(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=train.betas, eps=train.eps)
    losses = []
    for _ in range(25):
        optimizer.zero_grad()
        total, weight, logs = task(batch)
        (total / weight).backward()
        optimizer.step()
        task.after_step()
        losses.append(float((total / weight).detach()))
    assert total.shape == weight.shape == () and not weight.requires_grad
    assert all(log.shape == () and not log.requires_grad for log in logs.values())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert losses[-1] < 0.7 * losses[0]


@pytest.fixture
def embedding(recipe: Recipe, name: str) -> Recipe:
    if "embed" not in recipes.options_type(name).capabilities:
        assert not isinstance(recipe.task(recipe.build_model()), Embedder)
        pytest.skip("its models embed nothing")
    return recipe


def embedder(recipe: Recipe) -> Embedder:
    task = recipe.task(recipe.build_model()).eval()
    assert isinstance(task, Embedder)
    return task


def test_embeddings_share_one_space_of_unit_length(embedding: Recipe, name: str) -> None:
    task = embedder(embedding)
    with torch.no_grad():
        images = task.embed_images(batch_of(embedding, name))
        texts = task.embed_texts(["a cat", "a dog", "a cat"])
    assert images.shape[0] == 4 and texts.shape == (3, images.shape[1])
    for rows in (images, texts):
        assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows)), atol=1e-5)
    assert torch.allclose(texts[0], texts[2], atol=1e-6) and not torch.allclose(texts[0], texts[1])


def test_unknown_key_of_the_model_is_named(name: str) -> None:
    key = next(iter(MODELS[name]))
    both = rf"train\.model\.{key}x: unknown key; did you mean {key}\?\n  train\.model\.zzz: unknown key; there are: "
    with pytest.raises(UsageError, match=both):
        recipes.load_recipe(train_block(name, **MODELS[name], **{f"{key}x": 1, "zzz": 2}))


def test_options_are_read_without_torch(name: str) -> None:
    module, _, kind = RECIPES[name].options.partition(":")
    script = (
        f"import sys; from {module} import {kind}; print({kind}(**{MODELS[name]!r}), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" False\n"), done.stdout


def test_a_task_is_wrapped_by_ddp_and_compiled_in_place_unchanged(recipe: Recipe, name: str) -> None:
    task, batch = recipe.task(recipe.build_model().eval()), batch_of(recipe, name)
    expected = task(batch)
    (expected.sum / expected.weight).backward()
    gradients = [parameter.grad for parameter in task.parameters()]
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        task.zero_grad()
        task.compile(backend="eager")
        wrapped = DistributedDataParallel(task)(batch)
        (wrapped.sum / wrapped.weight).backward()
    finally:
        distributed.destroy_process_group()
    assert torch.allclose(wrapped.sum, expected.sum, rtol=1e-5) and wrapped.weight == expected.weight
    for before, parameter in zip(gradients, task.parameters(), strict=True):
        assert before is not None and torch.allclose(parameter.grad, before, rtol=1e-3, atol=1e-6)


def test_a_loss_of_a_contrast_is_that_of_the_features_of_its_parts(recipe: Recipe, name: str) -> None:
    """Which is what ranks and accumulation rest on."""
    task, batch = recipe.task(recipe.build_model().eval()), batch_of(recipe, name)
    if not isinstance(task, Contrastive):
        pytest.skip("its loss is a sum over samples")
    halves = [task.encode({field: batch[field][half] for field in batch}) for half in (slice(2), slice(2, 4))]
    joined = {field: torch.cat([half[field] for half in halves]) for field in halves[0]}
    assert torch.allclose(task.contrast(joined).sum, task(batch).sum, rtol=1e-5)


@pytest.mark.parametrize("loss", [None, "siglip"])
def test_the_ranks_own_rows_make_the_whole_contrast(
    recipe: Recipe, name: str, loss: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses and gradients of 2 and of 4 parts, in float64, each with its part of the logits' memory."""
    if loss is not None:
        if name != "clip":
            pytest.skip("its loss has one form")
        recipe = recipes.load_recipe(train_block(name, **MODELS[name], loss=loss))
    task: Any = recipe.task(recipe.build_model().eval())
    if not isinstance(task, Contrastive):
        pytest.skip("its loss is a sum over samples")
    drawn = torch.Generator().manual_seed(1)
    shapes = {
        field: value.shape[1] for field, value in task.encode(batch_of(recipe, name, is_train=True)).items()
    }
    task.double()
    given = {
        field: torch.nn.functional.normalize(
            torch.randn(SIDE, width, generator=drawn, dtype=torch.float64), dim=1
        )
        for field, width in shapes.items()
    }

    def taken(parts: int) -> tuple[Tensor, list[Tensor], int]:
        features = {field: value.clone().requires_grad_() for field, value in given.items()}
        share = SIDE // parts
        losses, most = [], 0
        for start in range(0, SIDE, share):
            kept: list[int] = []

            def keep(value: Tensor, kept: list[int] = kept) -> Tensor:
                is_logits = {*value.shape[-2:]} <= {share, SIDE}
                kept.append(value.numel() if is_logits else 0)
                return value

            own = slice(start, start + share) if parts > 1 else ALL
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
                losses.append(task.contrast(features, own).sum)
            most = max(most, sum(kept))
        total = torch.stack(losses).sum()
        wanted = [*(v for f, v in features.items() if not f.startswith("teacher")), *scales_of(task)]
        return total.detach(), list(torch.autograd.grad(total, wanted)), most

    whole, gradients, memory = taken(1)
    for parts in (2, 4):
        total, mine, part_memory = taken(parts)
        torch.testing.assert_close(total, whole, rtol=1e-9, atol=1e-12)
        for one, other in zip(mine, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-12)
        assert part_memory <= 1.01 * memory / parts, "as the rows that it computes"


def scales_of(task: Any) -> list[Tensor]:
    names = ("logit_scale", "logit_bias", "temperature")
    return [found for one in names if isinstance(found := getattr(task.model, one, None), Tensor)]


def test_a_wrong_name_is_told_without_torch() -> None:
    block = "recipe='clip', model={'name': 'ViT-B-23'}, batch_size=2, steps=1, lr=1, checkpoint_every=1"
    script = (
        "import sys; from tasks.core.schema import Train; from tasks.models import recipes\n"
        f"try: recipes.check_recipe(Train({block}))\n"
        "except Exception as error: print(error, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("did you mean ViT-B-32? False\n"), done.stdout


def test_an_editor_and_the_config_know_whatever_stands_in_the_table(name: str) -> None:
    assert name in configs.json_schema()["$defs"]["Train"]["properties"]["recipe"]["enum"]
    assert train_block(name).recipe == name
    with pytest.raises(ValueError, match=f"must be 'clip' or .*'{lengths.NAME}'"):
        train_block("futurist", name="x")
