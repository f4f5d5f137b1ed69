"""What the options of recipe clip change: another loss, size, picture, text tower, or model altogether."""

from __future__ import annotations

import copy
import io
import json
import multiprocessing
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, distributed

from tasks.core.errors import UsageError
from tasks.models import recipes
from tasks.models.clip.clip import ClipRecipe, ClipTask
from tasks.models.clip.clip_options import ClipOptions
from tasks.models.clip.openclip import open_clip
from tasks.models.clip.pictures import normalised
from tasks.training.ranks import Ranks, Spread
from tests.models.examples import picture, train_block

PATIENCE_S = 600.0
TINY: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "patch_size": 4, "layers": 1, "width": 16, "head_width": 8},
    "text_cfg": {"context_length": 8, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}
MADE_FOR_SIGMOID = {**TINY, "init_logit_scale": 2.3, "init_logit_bias": -10}


def recipe_of(**model: Any) -> ClipRecipe:
    found = recipes.load_recipe(train_block("clip", **{"config": TINY, **model}))
    assert isinstance(found, ClipRecipe)
    return found


def colours(seed: int = 0) -> bytes:
    pixels = torch.randint(
        0, 256, (6, 6, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).resize((60, 40)).save(file, "PNG")
    return file.getvalue()


def crops(recipe: ClipRecipe, seeds: int = 6, *, is_train: bool = True) -> Tensor:
    transform = recipe.transform(is_train)
    sample = {"png": colours(), "txt": b"x"}
    return torch.stack(
        [transform(sample, seed if is_train else None)["image"] for seed in range(seeds)]
    ).float()


def test_a_model_is_given_by_its_description() -> None:
    model: Any = recipe_of().build_model()
    assert model.visual.conv1.weight.shape == (16, 3, 4, 4) and model.context_length == 8
    assert recipe_of(config=MADE_FOR_SIGMOID).options.registered != recipe_of().options.registered
    described = {"embed_dim": 8, "vision_cfg": {"patch_size": 4}, "text_cfg": {}}
    assert train_block("clip", config=described).eps == 1e-6, "it is a vision transformer"


def test_a_description_of_no_model_is_a_usage_error() -> None:
    wrong = {**TINY, "vision_cfg": {**TINY["vision_cfg"], "widht": 8}}
    with pytest.raises(UsageError, match=r"train\.model\.config: open_clip cannot build this model: .*widht"):
        recipe_of(config=wrong).build_model()


def test_the_loss_is_the_one_the_model_is_made_for_or_that_is_asked_for() -> None:
    losses = [
        recipe_of(**keys).options.is_sigmoid
        for keys in ({}, {"loss": "siglip"}, {"config": MADE_FOR_SIGMOID}, {"loss": "clip"})
    ]
    assert losses == [False, True, True, False]
    asked: Any = recipe_of(loss="siglip").build_model()
    assert float(asked.logit_bias) == -10 and float(asked.logit_scale.exp()) == pytest.approx(10)
    made: Any = recipe_of(config=MADE_FOR_SIGMOID).build_model()
    assert float(made.logit_scale) == pytest.approx(2.3)
    assert recipe_of(loss="siglip").part_of("logit_bias") == "temperature"
    plain: Any = recipe_of().build_model()
    assert plain.logit_bias is None


def test_image_size_is_that_of_pictures_and_model() -> None:
    recipe = recipe_of(image_size=24)
    model: Any = recipe.build_model()
    assert crops(recipe, 1).shape == (1, 24, 24, 3) and model.visual.positional_embedding.shape[0] == 37
    assert crops(recipe_of(), 1).shape == (1, 16, 16, 3)


def test_pretrained_weights_of_another_size_are_fitted(tmp_path: Path) -> None:
    model = recipe_of().build_model()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    larger: Any = recipe_of(image_size=32, pretrained=str(tmp_path / "weights.pt")).build_model()
    assert larger.visual.positional_embedding.shape[0] == 65
    assert torch.equal(larger.visual.conv1.weight, model.state_dict()["visual.conv1.weight"])


def test_patches_are_dropped_in_training_only() -> None:
    torch.manual_seed(0)
    recipe = recipe_of(patch_dropout=0.5)
    model: Any = recipe.build_model()
    seen: list[int] = []
    model.visual.transformer.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
    pixels = torch.rand(2, 3, 16, 16)
    model.train().encode_image(pixels)
    model.eval().encode_image(pixels)
    assert seen == [9, 17], "8 of 16 patches, and the class token"


@pytest.mark.parametrize(
    "augment",
    [
        {"scale": [0.2, 0.3]},
        {"ratio": [0.25, 0.3]},
        {"color_jitter": [0.8, 0.8, 0.8, 0.2], "color_jitter_prob": 1.0},
        {"gray_scale_prob": 1.0},
    ],
    ids=lambda augment: next(iter(augment)),
)
def test_each_augmentation_changes_training_pictures_and_no_others(augment: dict[str, Any]) -> None:
    usual, other = recipe_of(), recipe_of(augment=augment)
    assert torch.equal(crops(other), crops(other)), "they are drawn by the sample's seed"
    assert not torch.equal(crops(usual), crops(other))
    assert torch.equal(crops(usual, 1, is_train=False), crops(other, 1, is_train=False))
    is_grey = bool((crops(other) == crops(other)[..., :1]).all())
    assert is_grey == ("gray_scale_prob" in augment)


def test_pictures_are_augmented_as_by_open_clip() -> None:
    augment = {
        "scale": [0.3, 1.0],
        "color_jitter": [0.4, 0.4, 0.4, 0.1],
        "color_jitter_prob": 0.8,
        "gray_scale_prob": 0.3,
    }
    theirs = open_clip.image_transform(16, True, aug_cfg=augment)

    for seed, mine in enumerate(crops(recipe_of(augment=augment), 8)):
        torch.manual_seed(seed)
        random.seed(seed)
        steps = theirs.transforms[:-2]
        expected = Image.open(io.BytesIO(colours())).convert("RGB")
        for step in steps:
            expected = step(expected)
        levels = np.abs(mine.numpy().astype(int) - np.asarray(expected))
        assert levels.max() <= 6, "a level of the crop, which jitter makes a few"


def test_timm_augments_and_erases_as_in_open_clip() -> None:
    augment = {
        "use_timm": True,
        "scale": [0.4, 1.0],
        "color_jitter": [0.4, 0.4, 0.4, 0.1],
        "re_prob": 0.8,
        "re_count": 3,
    }
    theirs = open_clip.image_transform(16, True, aug_cfg=augment)
    recipe = recipe_of(augment=augment)
    mine = crops(recipe, 8)
    for seed, one in enumerate(mine):
        torch.manual_seed(seed)
        random.seed(seed)
        assert torch.equal(one, theirs(Image.open(io.BytesIO(colours())).convert("RGB")))
    assert mine.abs().max() > 2.7, "noise is brighter than any picture"
    assert torch.equal(normalised(mine, recipe.preprocessing), mine)
    plain = [crops(one, 1, is_train=False) for one in (recipe, recipe_of())]
    assert torch.equal(*plain), "pictures that are judged are left alone"


@pytest.mark.parametrize(
    ("augment", "says"),
    [
        ({"re_prob": 0.5}, "re_prob only has an effect with use_timm"),
        ({"use_timm": True, "gray_scale_prob": 0.5}, "gray_scale_prob only has an effect without use_timm"),
        ({"use_timm": True, "re_count": 2}, "use_timm only has an effect with re_prob"),
    ],
)
def test_augmentations_without_effect_are_refused(augment: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recipe_of(augment=augment)


def test_a_text_tower_of_transformers_is_built_from_its_folder_and_trained(tmp_path: Path) -> None:
    """A tiny BERT with its vocabulary, as a folder that transformers reads: nothing is downloaded."""
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "photo", "of", "0", "1", "2", "3"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    tower = transformers.BertConfig(vocab_size=len(words), **shape)
    tower.save_pretrained(tmp_path)
    transformers.BertModel(tower, add_pooling_layer=False).save_pretrained(tmp_path)
    text = {
        "hf_model_name": str(tmp_path),
        "hf_tokenizer_name": str(tmp_path),
        "hf_proj_type": "mlp",
        "hf_pooler_type": "mean_pooler",
        "context_length": 8,
    }
    recipe = recipe_of(config={**TINY, "text_cfg": text})
    transform = recipe.transform(False)
    samples = [transform({"png": picture(n), "txt": f"a photo of {n}".encode()}, None) for n in range(4)]
    assert samples[0]["text"].shape == (8,) and not torch.equal(samples[0]["text"], samples[1]["text"])
    model = recipe.build_model()
    assert {recipe.part_of(name) for name, _ in model.named_parameters()} == {"vision", "text", "temperature"}
    task = recipe.task(model)
    batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    total, weight, _ = task(batch)
    total.backward()
    assert weight == 4 and all(parameter.grad is not None for parameter in model.parameters())
    (tmp_path / "model.safetensors").unlink()
    recipe.build_model(pretrained=False)


def test_a_tokenizer_that_is_nowhere_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    text = {**TINY["text_cfg"], "hf_tokenizer_name": str(tmp_path / "nothing")}
    with pytest.raises(Exception, match=r"train\.model: the tokenizer of .* cannot be loaded"):
        recipe_of(config={**TINY, "text_cfg": text}).transform(True)


class Doubled(ClipTask):
    """Its pictures are floats already."""

    def embed_images(self, batch: Mapping[str, Any]) -> Tensor:
        features: Tensor = self.model.encode_image(batch["image"], normalize=True)
        return features


def mean_over_ranks(gradients: dict[str, Tensor], ranks: Ranks) -> dict[str, Tensor]:
    """As DDP takes it."""
    return {name: ranks.sum(gradient) / ranks.count for name, gradient in gradients.items()}


def compare_to_open_clip(kind: str, ranks: Ranks) -> None:
    """Loss and gradients of every parameter by our path and by open_clip's own losses over ranks."""
    torch.manual_seed(3)
    recipe = recipe_of(loss=kind)
    model: Any = recipe.build_model().double()
    drawn = torch.Generator().manual_seed(9)
    share = slice(ranks.rank * 4, ranks.rank * 4 + 4)
    batch = {
        "image": torch.rand(4 * ranks.count, 3, 16, 16, generator=drawn, dtype=torch.float64)[share],
        "text": torch.randint(1, 99, (4 * ranks.count, 8), generator=drawn)[share],
    }
    task = Doubled(model, recipe.tokenize, recipe.preprocessing, is_sigmoid=recipe.options.is_sigmoid)
    loss = Spread(task, ranks)(batch)
    mean = loss.sum / loss.weight
    mean.backward()
    mine = mean_over_ranks({name: p.grad for name, p in model.named_parameters()}, ranks)

    other = copy.deepcopy(model)
    other.zero_grad()
    over = {"rank": ranks.rank, "world_size": ranks.count}
    criterion = (
        open_clip.loss.SigLipLoss(**over)
        if kind == "siglip"
        else open_clip.ClipLoss(gather_with_grad=True, **over)
    )
    features = (
        other.encode_image(batch["image"], normalize=True),
        other.encode_text(batch["text"], normalize=True),
    )
    bias = {"logit_bias": other.logit_bias} if kind == "siglip" else {}
    theirs = criterion(*features, other.logit_scale.exp(), **bias)
    theirs.backward()
    expected = mean_over_ranks({name: p.grad for name, p in other.named_parameters()}, ranks)
    whole = ranks.sum(theirs) / ranks.count
    torch.testing.assert_close(ranks.sum(mean) / ranks.count, whole, rtol=1e-9, atol=1e-12)
    assert len(mine) == len(expected) > 20
    for name, gradient in expected.items():
        torch.testing.assert_close(mine[name], gradient, rtol=1e-6, atol=1e-12, msg=name)


def compare_as_rank(folder: Path, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=count)
    for kind in ("clip", "siglip"):
        compare_to_open_clip(kind, Ranks(rank, count))
    distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_loss_and_gradients_are_open_clips(kind: str) -> None:
    compare_to_open_clip(kind, Ranks())


def test_loss_and_gradients_are_open_clips_over_two_ranks(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=compare_as_rank, args=(tmp_path, rank, 2)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(PATIENCE_S)
        rank.kill()
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_the_options_of_a_run_are_plain_values() -> None:
    """They are part of its identity."""
    assert (
        json.loads(json.dumps(ClipOptions(config=TINY, loss="siglip").model_dump(mode="json")))["config"]
        == TINY
    )
