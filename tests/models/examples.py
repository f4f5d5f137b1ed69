"""A tiny model and four samples of each recipe: a new one gives its own here, and all that every recipe must
keep is asked of it.

The recipe `lengths` is one of the tests' own; who wants it puts its row into the table.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tokenizers import Tokenizer, models

from tasks.core.schema import Train
from tasks.core.schema.recipes import RECIPES
from tasks.dataset.formats.volumes import stored
from tasks.loader.collate import pack, unpack
from tasks.models.recipes import Recipe, options_type
from tests.models import lengths


def picture(number: int) -> bytes:
    """40 x 40 grey clouds, others for each number."""
    clouds = np.random.default_rng(number).integers(0, 256, (5, 5), np.uint8)
    file = io.BytesIO()
    Image.fromarray(clouds).resize((40, 40), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


def taught(number: int, augmentations: int = 3, synthetic: int = 2) -> dict[str, bytes]:
    """A reinforced sample of two teachers, 4 and 5 wide, who know its number of four."""
    seen = [[[n, 0, 30, 40 - n], [[5, 10.0 * n], None]] for n in range(augmentations)]
    image, text = (np.random.default_rng(number).normal(0, 0.1, (rows, 9)) for rows in (8, 8))
    for known in (image, text):
        known[:, [number, 4 + number]] += 1
    arrays = io.BytesIO()
    np.savez(
        arrays,
        image_emb=image[:augmentations].astype(np.float32),
        text_emb=text[: 1 + synthetic].astype(np.float32),
    )
    return {
        "png": picture(number),
        "txt": f"a photo of a {number}".encode(),
        "syn.json": json.dumps({"syn_text": [f"number {number}, {n}" for n in range(synthetic)]}).encode(),
        "paug.json": json.dumps({"param_aug": seen}).encode(),
        "npz": arrays.getvalue(),
    }


def chat(number: int) -> dict[str, bytes]:
    """No picture, one, or two, and as many turns."""
    turns = [
        {"user": f"Which is it, {turn}?", "assistant": f"It is {number}."} for turn in range(number % 3 or 1)
    ]
    pictures = {f"{place:03d}.png": picture(number + place) for place in range(number % 3)}
    return {"json": json.dumps({"messages": turns}).encode(), **pictures}


def scan(number: int, shape: tuple[int, int, int] = (8, 16, 16)) -> dict[str, bytes]:
    """A volume with a report, others for each number."""
    voxels = np.random.default_rng(number).integers(-1000, 1000, shape).astype(np.int16)
    name, content = stored.encode(voxels, "npy")
    facts = {"axes": "zxy", "labels": {"Nodule": number % 2}}
    return {name: bytes(content), "txt": f"Finding {number}.".encode(), "json": json.dumps(facts).encode()}


TINY_CT = {"vision": "tarmac/phantoms", "shape": [8, 16, 16], "jitter": 100}
MODELS: dict[str, dict[str, Any]] = {
    "clip": {"name": "tarmac/digits"},
    "clip_reinforced": {
        "name": "tarmac/digits",
        "teachers": [{"width": 4, "logit_scale": 10.0}, {"width": 5, "logit_scale": 20.0}],
    },
    "ct_clip": TINY_CT,
    "vlm": {"vision": "tarmac/chat", "language": "tarmac/chat", "pixel_shuffle": 2, "max_side": 32},
    lengths.NAME: {"width": 8},
}
UNAUGMENTED = ("vlm",)
"""Recipes whose originals train on samples as they are."""
SAMPLES: dict[str, list[dict[str, bytes]]] = {
    "clip": [{"png": picture(n), "txt": f"a photo of a {n}".encode()} for n in range(4)],
    "clip_reinforced": [taught(n) for n in range(4)],
    "ct_clip": [scan(n) for n in range(4)],
    "vlm": [chat(n) for n in range(4)],
    lengths.NAME: [{"png": picture(n), "txt": b"x" * (n + 1)} for n in range(4)],
}


TRAINED = [name for name in RECIPES if not options_type(name).is_external]
"""The recipes that Tarmac trains itself."""


def train_block(recipe: str, keys: dict[str, Any] | None = None, **model: Any) -> Train:
    """A training of 2 steps of 4 samples, but for what `keys` say."""
    usual = {
        "recipe": recipe,
        "model": model or MODELS[recipe],
        "batch_size": 4,
        "steps": 2,
        "lr": 0.1,
        "checkpoint_every": 2,
    }
    return Train.model_validate({**usual, **(keys or {})})


def written_parts(folder: Path, vision: dict[str, Any], language: dict[str, Any]) -> dict[str, str]:
    """Write the configs of a SigLIP and a Llama of these sizes, with a tokenizer; the options of a `vlm` that
    is made of them."""
    from transformers import LlamaConfig, SiglipVisionConfig

    parts = {part: folder / part for part in ("vision", "language")}
    SiglipVisionConfig(**vision).save_pretrained(parts["vision"])
    means = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (parts["vision"] / "preprocessor_config.json").write_text(json.dumps(means))
    LlamaConfig(**language).save_pretrained(parts["language"])
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    words.save(str(parts["language"] / "tokenizer.json"))
    return {part: str(path) for part, path in parts.items()}


def batch_of(
    recipe: Recipe, name: str, *, is_train: bool = False, samples: slice = slice(None)
) -> dict[str, Any]:
    """The samples as the loader hands them on."""
    transform, seed = recipe.transform(is_train), 5 if is_train else None
    made = [{**transform(sample, seed), "key": str(n)} for n, sample in enumerate(SAMPLES[name])]
    return unpack(pack(made[samples], collate=recipe.collate))[0]
