"""What is CLIP's own: names, weights, temperature, and agreement with open_clip."""

from __future__ import annotations

import io
import json
import math
import pickle
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from open_clip_train.params import get_default_params
from PIL import Image, ImageOps
from safetensors.torch import save_model

from tasks.core.errors import DataError, UsageError
from tasks.loader.order import sample_seeds
from tasks.models import recipes
from tasks.models.clip import clip
from tasks.models.clip.clip import ClipRecipe
from tasks.models.clip.clip_options import ClipOptions
from tasks.models.clip.openclip import open_clip
from tasks.models.clip.pictures import normalised
from tests.models.examples import picture, train_block


def recipe_of(name: str, pretrained: str | None = None) -> ClipRecipe:
    return ClipRecipe(ClipOptions(name=name, pretrained=pretrained))


DIGITS = recipe_of("tarmac/digits")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            {"name": "tarmac/digit"},
            r"train\.model\.name: unknown model 'tarmac/digit'; did you mean tarmac/digits\?",
        ),
        ({"name": "ViT-B32"}, r"did you mean ViT-B-32\?"),
        ({"name": "hf-hub:someone/something"}, "unknown model"),
        ({"pretrained": "openai"}, r"train\.model: needs either name .* or config$"),
        ({"name": "RN50", "patch_dropout": 0.5}, r"train\.model: patch_dropout: .* RN50 drops no patches"),
        (
            {"name": "ViT-B-16-SigLIP", "loss": "clip"},
            "made for a sigmoid loss .SigLIP.; CLIP's does not train its bias",
        ),
        ({"config": {"embed_dim": 8, "vision_cfg": {}}}, r"train\.model\.config: lacks text_cfg"),
        (
            {"name": "ViT-B-32", "augment": {"color_jitter_prob": 0.8}},
            r"train\.model\.augment: color_jitter and color_jitter_prob only have an effect together",
        ),
        (
            {"name": "ViT-B-32", "augment": {"scale": [0.9, 0.4]}},
            "scale: must rise from the smaller to the larger",
        ),
        ({"name": "ViT-B-32", "pretrained": 7}, r"train\.model\.pretrained: must be"),
        ({"name": "coca_ViT-B-32"}, "CoCa"),
        (
            {"name": "ViT-B-32", "pretrained": "openai"},
            r"pretrained: .*openai .*activation.*take name: ViT-B-32-quickgelu$",
        ),
        ({"name": "ViT-L-14", "pretrained": "metaclip_fullcc"}, "take name: ViT-L-14-quickgelu$"),
    ],
)
def test_a_wrong_model_is_told_with_the_fix(model: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recipes.load_recipe(train_block("clip", **model))


def test_weights_that_are_not_there_are_told_where_they_are_loaded() -> None:
    """Not before: a model whose weights come from a checkpoint needs none."""
    recipe = recipes.load_recipe(train_block("clip", name="ViT-B-32", pretrained="openaj"))
    with pytest.raises(UsageError, match=r"train\.model\.pretrained.*did you mean openai\?"):
        recipe.build_model()


def test_a_file_of_weights_is_not_needed_for_a_checkpoint(tmp_path: Path) -> None:
    recipe = recipes.load_recipe(
        train_block("clip", name="tarmac/digits", pretrained=str(tmp_path / "moved.pt"))
    )
    recipe.build_model(pretrained=False)
    recipe.transform(is_train=False)


@pytest.mark.parametrize("name", ["tarmac/digits", "ViT-B-32", "RN50", "convnext_base"])
def test_adam_is_set_as_by_open_clips_trainer(name: str) -> None:
    expected = get_default_params("vit" if name == "tarmac/digits" else name)
    train = train_block("clip", name=name)
    assert (*train.betas, train.eps) == (expected["beta1"], expected["beta2"], expected["eps"])


def test_norms_biases_and_temperature_do_not_decay_whatever_their_shape() -> None:
    names = ("weight", "bn_scale", "ln_scale", "bias_table", "logit_scale")
    assert [name for name in names if DIGITS.is_decayed(name, torch.zeros(2, 2))] == ["weight"]
    assert not DIGITS.is_decayed("weight", torch.zeros(2))


def test_training_crops_as_open_clip_and_judging_does_not() -> None:
    sample = {"png": picture(0), "txt": b"a photo of a seven"}
    crops = [DIGITS.transform(True)(sample, seed)["image"] for seed in range(8)]
    assert all(crop.shape == (32, 32, 3) and crop.dtype == torch.uint8 for crop in crops)
    plain = DIGITS.transform(False)(sample, None)
    spread = torch.stack([(crop.float() - plain["image"]).abs().mean() for crop in crops])
    assert spread.min() > 0 and spread.max() < 32, "crops keep 90 % of the picture and more"
    reference = open_clip.tokenize(["a photo of a seven"], context_length=16)[0]
    assert torch.equal(plain["text"], reference)


def test_a_sample_without_caption_is_a_data_error() -> None:
    with pytest.raises(DataError, match="txt"):
        DIGITS.transform(False)({"png": picture(0)}, None)


@pytest.mark.parametrize(
    ("name", "tag"),
    [("tarmac/digits", None), ("ViT-B-32", None), ("RN50x4", None), ("MobileCLIP-B", "datacompdr")],
)
@pytest.mark.parametrize("is_train", [True, False])
def test_pictures_come_to_the_model_as_by_open_clips_own_transform(
    name: str, tag: str | None, is_train: bool
) -> None:
    """To the bit where a model is judged and within 2 levels of 255 in training, though they travel as bytes;
    MobileCLIP's weights take them from 0 to 1 as they are."""
    recipe, seen = recipe_of(name, tag), []
    given = open_clip.get_pretrained_cfg(name, tag) if tag else {}
    fields = {
        field: given[field] for field in ("mean", "std", "interpolation", "resize_mode") if field in given
    }
    size = open_clip.get_model_config(name.replace("/", "-"))["vision_cfg"]["image_size"]
    usual = open_clip.image_transform(size, is_train, **fields)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = usual(Image.open(io.BytesIO(picture(seed))).convert("RGB"))
        got = recipe.transform(is_train)({"png": picture(seed), "txt": b"x"}, seed if is_train else None)
        seen.append((normalised(got["image"][None], recipe.preprocessing)[0], expected))
    assert all(mine.shape == (3, size, size) for mine, _ in seen)
    if is_train:
        level = 1 / 255 / min(recipe.preprocessing.std)
        assert max((mine - theirs).abs().max() for mine, theirs in seen) < 2.01 * level
    else:
        assert all(torch.equal(mine, theirs) for mine, theirs in seen)
    assert (seen[0][0].min() >= 0) == (tag is not None)


@pytest.mark.parametrize("turned", [1, 6])
@pytest.mark.parametrize(
    "augment", [{}, {"scale": [0.3, 1.0], "color_jitter": [0.2, 0.2, 0.2, 0.0], "color_jitter_prob": 1.0}]
)
def test_crops_of_large_jpegs_are_open_clips_but_for_a_few_levels(
    turned: int, augment: dict[str, Any]
) -> None:
    """They are decoded at an eighth to a half of their size, whichever still holds the crop."""
    down, across, colour = np.ogrid[:480, :640, :3]
    waves = 128 + 60 * np.sin(across / 37 + colour) + 50 * np.cos(down / 29 - colour)
    exif = Image.Exif()
    exif[0x0112] = turned
    file = io.BytesIO()
    Image.fromarray(waves.astype(np.uint8)).save(file, "JPEG", quality=95, exif=exif)
    transform = ClipRecipe(ClipOptions(name="tarmac/digits", augment=augment)).transform(True)
    usual = open_clip.image_transform(32, True, aug_cfg=augment)
    for seed in range(4):
        torch.manual_seed(seed)
        random.seed(seed)
        expected = ImageOps.exif_transpose(Image.open(file)).convert("RGB")
        for step in usual.transforms[:-2]:
            expected = step(expected)
        got = transform({"jpg": file.getvalue(), "txt": b"x"}, seed)["image"].numpy()
        difference = np.abs(got.astype(int) - np.asarray(expected))
        assert 0 < difference.max() <= 24 and difference.mean() < 6


def test_tokens_that_are_kept_are_the_captions_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip, "KEPT_CAPTIONS", 3)
    transform = DIGITS.transform(False)
    for number in [0, 1, 0, 2, 3, 0, 4, 5, 5]:
        tokens = transform({"png": picture(0), "txt": f"a {number}".encode()}, None)["text"]
        assert torch.equal(tokens, open_clip.tokenize([f"a {number}"], context_length=16)[0])


def test_kept_tokens_do_not_travel_to_workers() -> None:
    """Each would take a file descriptor, of which a new process is handed at most 250."""
    used, new = DIGITS.transform(False), DIGITS.transform(False)
    for number in range(300):
        used({"png": picture(0), "txt": f"a {number}".encode()}, None)
    assert pickle.dumps(used) == pickle.dumps(new)


@pytest.mark.parametrize(
    "others",
    [{}, {"context_length": 12}, {"additional_special_tokens": ["<x>"], "clean": "canonicalize"}],
    ids=["usual", "shorter", "own tables"],
)
def test_a_tokenizer_travels_as_what_is_not_usual_of_it(others: dict[str, Any]) -> None:
    tokenizer = open_clip.tokenizer.SimpleTokenizer(**others)
    data = pickle.dumps(tokenizer)
    came = pickle.loads(data)
    text = "A <x> Dog, on a mat that nobody has seen before it was printed"
    assert torch.equal(came([text]), tokenizer([text]))
    assert (len(data) < 1000) == ("clean" not in others)
    assert came.cache is not open_clip.tokenizer._tokenizer.cache


def test_pretrained_file_is_taken_up(tmp_path: Path) -> None:
    torch.manual_seed(5)
    weights = DIGITS.build_model()
    save_model(weights, str(tmp_path / "model.safetensors"))
    recipe = recipes.load_recipe(
        train_block("clip", name="tarmac/digits", pretrained=str(tmp_path / "model.safetensors"))
    )
    loaded = recipe.build_model().state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in weights.state_dict().items())
    fresh = recipe.build_model(pretrained=False).state_dict()
    assert not torch.equal(fresh["text_projection"], loaded["text_projection"])


def test_pretrained_file_that_is_none_or_of_another_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.pt").write_text("no weights")
    save_model(torch.nn.Linear(2, 2), str(tmp_path / "other.safetensors"))
    for name in ("text.pt", "other.safetensors"):
        recipe = recipe_of("tarmac/digits", str(tmp_path / name))
        with pytest.raises(DataError, match=rf"train\.model\.pretrained: .*{name}"):
            recipe.build_model()


def test_temperature_stays_below_a_hundred() -> None:
    model: Any = DIGITS.build_model()
    with torch.no_grad():
        model.logit_scale.fill_(9.0)
    DIGITS.task(model).after_step()
    assert model.logit_scale.item() == pytest.approx(math.log(100))


def test_loss_is_the_symmetric_cross_entropy() -> None:
    torch.manual_seed(0)
    model: Any = DIGITS.build_model().eval()
    samples = [DIGITS.transform(False)({"png": picture(n), "txt": f"{n}".encode()}, None) for n in range(4)]
    batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    logits = model.get_logits(normalised(batch["image"], DIGITS.preprocessing), batch["text"])[0]
    diagonal = (logits.log_softmax(0).diagonal() + logits.log_softmax(1).diagonal()) / 2
    loss = DIGITS.task(model)(batch)
    assert loss.weight == 4 and loss.sum.item() == pytest.approx(-diagonal.sum().item(), rel=1e-5)


def test_training_draws_a_caption_per_epoch_and_evaluation_takes_the_first() -> None:
    captions = [f"caption {number}" for number in range(5)]
    document = json.dumps({"captions": captions}).encode()
    sample = {"png": picture(1), "txt": captions[0].encode(), "json": document}
    plain = {"png": picture(1), "txt": captions[0].encode()}
    transform = DIGITS.transform(True)
    tokens = {tuple(DIGITS.tokenize(caption)[0].tolist()): caption for caption in captions}
    seeds = sample_seeds(np.arange(1000), 7).tolist()  # of 1,000 epochs
    drawn = [tokens[tuple(transform(sample, seed)["text"].tolist())] for seed in seeds]
    counts = Counter(drawn)
    assert set(counts) == set(captions) and min(counts.values()) > 150
    again = DIGITS.transform(True)  # as another worker, or a resumed run
    assert [tokens[tuple(again(sample, seed)["text"].tolist())] for seed in seeds[::-100]] == drawn[::-100]
    crops = (DIGITS.transform(True)(members, seeds[0])["image"] for members in (sample, plain))
    assert torch.equal(*crops), "the crop does not depend on how many captions there are"
    assert tokens[tuple(DIGITS.transform(False)(sample, None)["text"].tolist())] == captions[0]
