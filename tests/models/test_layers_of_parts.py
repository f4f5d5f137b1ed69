"""The layers of a model's parts, beside those that open_clip locks and BEiT gives a rate to."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tasks.core.errors import UsageError
from tasks.core.schema import Train
from tasks.models.layers import blocks_by_part, lock, rate_shares
from tasks.models.recipes import Recipe, load_recipe
from tests.models.examples import MODELS

DIGITS = {"name": "tarmac/digits"}
SMALL = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 3, "width": 32, "patch_size": 16, "head_width": 16},
    "text_cfg": {"context_length": 8, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 4},
}


def made(model: dict[str, object], recipe: str = "clip", **keys: object) -> tuple[Recipe, nn.Module, Train]:
    block = {"recipe": recipe, "model": model, "batch_size": 8, "steps": 10, "lr": 0.1, "checkpoint_every": 5}
    train = Train.model_validate({**block, "warmup": 0, **keys})
    found = load_recipe(train)
    torch.manual_seed(0)
    return found, found.build_model(pretrained=False), train


def trained(model: nn.Module) -> set[str]:
    return {name for name, one in model.named_parameters() if one.requires_grad}


@pytest.mark.parametrize("is_custom", [False, True], ids=["CLIP", "CustomTextCLIP"])
@pytest.mark.parametrize("groups", range(1, 7))
def test_what_is_unlocked_is_what_open_clip_unlocks(groups: int, is_custom: bool) -> None:
    described = {**SMALL, **({"custom_text": True} if is_custom else {})}
    recipe, mine, train = made({"config": described}, unlocked={"vision": groups, "text": groups})
    theirs = made({"config": described})[1]
    theirs.lock_image_tower(unlocked_groups=groups)
    theirs.lock_text_tower(unlocked_layers=groups)
    lock(recipe, mine, train)
    assert trained(mine) == trained(theirs)
    assert (len(trained(mine)) == len(list(mine.parameters()))) == (groups == 6)


def test_modules_that_are_locked_whole_are_named() -> None:
    recipe, model, train = made({"config": SMALL}, unlocked={"vision": 2}, freeze=["text"])
    names = {module: name for name, module in model.named_modules()}
    locked = {names[module] for module in lock(recipe, model, train)}
    assert {"visual.conv1", "visual.transformer.resblocks.1.attn", "transformer", "token_embedding"} <= locked
    assert not {"visual", "visual.transformer.resblocks.2", "visual.ln_post", ""} & locked


def test_rates_fall_from_layer_to_layer() -> None:
    """As in BEiT: 1 above the blocks, the last block one power of the decay, the embeddings one more than
    there are blocks."""
    recipe, model, _ = made({"config": SMALL})
    shares = rate_shares(recipe, model, 0.5)
    assert {
        shares[one] for one in ("visual.proj", "visual.ln_post.weight", "text_projection", "logit_scale")
    } == {1}
    for part, name in (("visual.", "vision"), ("", "text")):
        count = len(blocks_by_part(recipe, model)[name])
        found = [shares[f"{part}transformer.resblocks.{place}.mlp.c_fc.weight"] for place in range(count)]
        assert found == [0.5 ** (count - place) for place in range(count)]
    assert (
        shares["visual.conv1.weight"]
        == shares["visual.class_embedding"]
        == shares["visual.ln_pre.bias"]
        == 0.5**4
    )
    assert shares["token_embedding.weight"] == shares["positional_embedding"] == 0.5**5
    assert set(rate_shares(recipe, model, None).values()) == {1.0}


@pytest.mark.parametrize("recipe", ["ct_clip", "vlm"])
def test_towers_of_other_recipes_have_layers(recipe: str) -> None:
    found, model, _ = made(MODELS[recipe], recipe)
    shares = rate_shares(found, model, 0.5)
    patches = next(share for name, share in shares.items() if "patch_emb" in name)
    assert patches == 0.5**3, "two blocks, and what lies above them"
    assert {share for name, share in shares.items() if "latent" in name or "projector" in name} == {1.0}


def test_a_part_without_a_transformer_is_refused() -> None:
    resnet = {**SMALL, "vision_cfg": {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}}
    recipe, model, train = made({"config": resnet}, unlocked={"vision": 1})
    with pytest.raises(UsageError, match=r"train\.unlocked\.vision: this part .* has no transformer"):
        lock(recipe, model, train)
    with pytest.raises(UsageError, match=r"train\.unlocked: a model of recipe clip has no part 'visual'"):
        made(DIGITS, unlocked={"visual": 1})
