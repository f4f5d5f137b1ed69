"""Query an export with the other library alone. This program does not import Tarmac."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

Answers = tuple[str, dict[str, Any]]
"""The version of the library, and its answers by name."""


def main(export: str, proof: str, library: str, source: str = "") -> None:
    """Answer the question in the folder `proof` and write `answers.safetensors` there."""
    import torch
    from safetensors.torch import load_file, save_file

    asked = json.loads(Path(proof, "question.json").read_text(encoding="utf-8"))
    asked |= {"tensors": load_file(Path(proof, "question.safetensors")), "folder": Path(proof)}
    with torch.inference_mode():
        if library == "nanoVLM":
            version, answers = ask_nano_vlm(export, asked, source)
        else:
            ask = {"open_clip": ask_open_clip, "transformers": ask_transformers}[library]
            version, answers = ask(export, asked)
    save_file(
        {name: value.contiguous().clone() for name, value in answers.items()},
        Path(proof, "answers.safetensors"),
        {"library": f"{library} {version}"},
    )


def ask_open_clip(export: str, asked: Any) -> Answers:
    """Compute the features of pictures and texts with open_clip's model, picture transform and tokenizer."""
    import open_clip
    import torch
    from PIL import Image

    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{export}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{export}")
    model = model.double().eval()
    pixels = torch.stack([transform(Image.open(asked["folder"] / name)) for name in asked["pictures"]])
    return open_clip.__version__, {
        "image features": model.encode_image(pixels.double(), normalize=True),
        "text features": model.encode_text(tokenizer(asked["texts"]), normalize=True),
        "temperature": model.logit_scale.exp().reshape(1),
    }


def ask_transformers(export: str, asked: Any) -> Answers:
    """Query the class that the export's config names, with its processor and tokenizer."""
    transformers: Any = importlib.import_module("transformers")
    kind = json.loads(Path(export, "config.json").read_text(encoding="utf-8"))["model_type"]
    answer = {"clip": _clip, "idefics3": _idefics3}.get(kind, _encoder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    return transformers.__version__, answer(transformers, export, tokenizer, asked)


def _clip(transformers: Any, export: str, tokenizer: Any, asked: Any) -> dict[str, Any]:
    """Compute the features of pictures and texts, and the temperature."""
    from PIL import Image
    from torch.nn.functional import normalize

    model = transformers.CLIPModel.from_pretrained(export).double().eval()
    processor = transformers.AutoImageProcessor.from_pretrained(export, backend="pil")
    pictures = [Image.open(asked["folder"] / name) for name in asked["pictures"]]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"].double()
    texts = tokenizer(asked["texts"], padding=True, truncation=True, return_tensors="pt")
    output = model(**texts, pixel_values=pixels)
    return {
        "image features": normalize(output.image_embeds, dim=-1),
        "text features": normalize(output.text_embeds, dim=-1),
        "temperature": model.logit_scale.exp().reshape(1),
    }


def _idefics3(transformers: Any, export: str, tokenizer: Any, asked: Any) -> dict[str, Any]:
    """Compute the logits of a conversation about a picture, and the tokens of a text."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(export).double().eval()
    given = asked["tensors"]
    tiles = given["tiles"].permute(0, 3, 1, 2).double() / 255
    mean, deviation = (given[name].double().view(3, 1, 1) for name in ("mean", "deviation"))
    output = model(input_ids=given["tokens"], pixel_values=((tiles - mean) / deviation)[None])
    spelt = tokenizer(asked["texts"], add_special_tokens=False, return_tensors="pt").input_ids
    return {"logits": output.logits, "tokens": spelt}


def _encoder(transformers: Any, export: str, tokenizer: Any, asked: Any) -> dict[str, Any]:
    """Compute an encoder's output for each text's first token."""
    model = transformers.AutoModel.from_pretrained(export).double().eval()
    texts = tokenizer(asked["texts"], padding=True, return_tensors="pt")
    output = model(input_ids=texts["input_ids"], attention_mask=texts["attention_mask"])
    return {"text features": output.last_hidden_state[:, 0], "tokens": texts["input_ids"]}


def ask_nano_vlm(export: str, asked: Any, source: str) -> Answers:
    """Compute logits and tokens with the model and tokenizer of nanoVLM's sources in the folder `source`."""
    sys.path.insert(0, source)
    from models.vision_language_model import VisionLanguageModel  # type: ignore[import-not-found]

    os.chdir(export)  # config.json finds the tokenizer from there until the export has its final place
    model = VisionLanguageModel.from_pretrained(".").double().eval()
    given = asked["tensors"]
    features, _ = model(given["tokens"], given["tiles"].permute(0, 3, 1, 2).double() / 255)
    spelt = model.tokenizer(asked["texts"], add_special_tokens=False, return_tensors="pt").input_ids
    return f"in {source}", {"logits": model.decoder.head(features), "tokens": spelt}


if __name__ == "__main__":
    main(*sys.argv[1:5])
