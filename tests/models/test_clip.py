"""What is CLIP's own: names, weights, temperature, and agreement with open_clip."""

from __future__ import annotations

import io
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from open_clip_train.params import get_default_params
from PIL import Image
from safetensors.torch import save_model

from tasks.core.errors import DataError, UsageError
from tasks.models import clip, recipes
from tasks.models.clip import ClipRecipe
from tasks.models.openclip import open_clip
from tasks.models.pictures import normalised
from tests.models.test_recipes import picture, train_block

DIGITS = ClipRecipe("tarmac/digits")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            {"name": "tarmac/digit"},
            r"train\.model\.name: unknown model 'tarmac/digit'; did you mean tarmac/digits\?",
        ),
        ({"name": "ViT-B32"}, r"did you mean ViT-B-32\?"),
        ({"name": "hf-hub:someone/something"}, "unknown model"),
        ({"pretrained": "openai"}, r"train\.model\.name: is required"),
        ({"name": "ViT-B-32", "pretrained": 7}, r"train\.model\.pretrained: must be"),
        ({"name": "coca_ViT-B-32"}, "CoCa"),
        ({"name": "ViT-B-16-SigLIP"}, "SigLIP"),
        ({"name": "roberta-ViT-B-32"}, "Hugging Face"),
    ],
)
def test_a_wrong_model_is_told_with_the_fix(model: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recipes.load(train_block("clip", **model))


@pytest.mark.parametrize(
    ("name", "weights", "says"),
    [
        ("ViT-B-32", "openaj", r"train\.model\.pretrained.*did you mean openai\?"),
        ("ViT-B-32", "openai", r"train\.model\.name: .*openai .*activation.*take ViT-B-32-quickgelu$"),
        ("ViT-L-14", "metaclip_fullcc", "take ViT-L-14-quickgelu$"),
    ],
)
def test_weights_that_do_not_fit_are_told_where_they_are_loaded(name: str, weights: str, says: str) -> None:
    """Not before: a model whose weights come from a checkpoint needs none."""
    recipe = recipes.load(train_block("clip", name=name, pretrained=weights))
    with pytest.raises(UsageError, match=says):
        recipe.build_model()


def test_a_file_of_weights_is_not_needed_for_a_checkpoint(tmp_path: Path) -> None:
    recipe = recipes.load(train_block("clip", name="tarmac/digits", pretrained=str(tmp_path / "moved.pt")))
    recipe.build_model(pretrained=False)
    recipe.transform(is_train=False)


@pytest.mark.parametrize("name", ["tarmac/digits", "ViT-B-32", "RN50", "convnext_base"])
def test_adam_is_set_as_by_open_clips_trainer(name: str) -> None:
    expected = get_default_params("vit" if name == "tarmac/digits" else name)
    for group in ClipRecipe(name).parameter_groups(torch.nn.Linear(2, 2), 0.2):
        assert (*group["betas"], group["eps"]) == (expected["beta1"], expected["beta2"], expected["eps"])


def test_norms_biases_and_temperature_do_not_decay_whatever_their_shape() -> None:
    model = torch.nn.ParameterDict(
        {name: torch.zeros(2, 2) for name in ("weight", "bn_scale", "ln_scale", "bias_table", "logit_scale")}
    )
    model["vector"] = torch.zeros(2)
    decayed, undecayed = DIGITS.parameter_groups(model, 0.2)
    assert [len(group["params"]) for group in (decayed, undecayed)] == [1, 5]
    assert decayed["params"][0] is model["weight"] and decayed["weight_decay"] == 0.2
    assert undecayed["weight_decay"] == 0


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
    """To the bit, though they travel as bytes; MobileCLIP's weights take them from 0 to 1 as they are."""
    recipe, seen = ClipRecipe(name, tag), []
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
    assert all(torch.equal(mine, theirs) and mine.shape == (3, size, size) for mine, theirs in seen)
    assert (seen[0][0].min() >= 0) == (tag is not None)


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


def test_pretrained_file_is_taken_up(tmp_path: Path) -> None:
    torch.manual_seed(5)
    weights = DIGITS.build_model()
    save_model(weights, str(tmp_path / "model.safetensors"))
    recipe = recipes.load(
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
        recipe = ClipRecipe("tarmac/digits", str(tmp_path / name))
        with pytest.raises(DataError, match=rf"train\.model\.pretrained: .*{name}"):
            recipe.build_model()


def test_temperature_stays_below_a_hundred() -> None:
    model: Any = DIGITS.build_model()
    with torch.no_grad():
        model.logit_scale.fill_(9.0)
    DIGITS.after_step(model)
    assert model.logit_scale.item() == pytest.approx(math.log(100))


def test_loss_is_the_symmetric_cross_entropy() -> None:
    torch.manual_seed(0)
    model: Any = DIGITS.build_model().eval()
    samples = [DIGITS.transform(False)({"png": picture(n), "txt": f"{n}".encode()}, None) for n in range(4)]
    batch = {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
    logits = model.get_logits(normalised(batch["image"], DIGITS.preprocessing), batch["text"])[0]
    diagonal = (logits.log_softmax(0).diagonal() + logits.log_softmax(1).diagonal()) / 2
    assert DIGITS.loss(model, batch).item() == pytest.approx(-diagonal.mean().item(), rel=1e-5)
