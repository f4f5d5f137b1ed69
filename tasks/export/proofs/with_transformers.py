"""Query an export with transformers alone: the class that its config names, its processor and its
tokenizer."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def main(export: str, proof: str) -> None:
    """Answer the question in the folder `proof` and write `answers.safetensors` there."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    asked = json.loads(Path(proof, "question.json").read_text(encoding="utf-8"))
    given = load_file(Path(proof, "question.safetensors"))
    kind = json.loads(Path(export, "config.json").read_text(encoding="utf-8"))["model_type"]
    answer = {"clip": clip, "idefics3": idefics3}.get(kind, encoder)
    with torch.inference_mode():
        answers = answer(export, Path(proof), asked, given)
    save_file(
        {name: value.contiguous().clone() for name, value in answers.items()},
        Path(proof, "answers.safetensors"),
        {"library": f"transformers {transformers.__version__}"},
    )


def clip(export: str, proof: Path, asked: Any, given: Any) -> dict[str, Any]:
    """Compute the features of pictures and texts, and the temperature."""
    import torch
    from PIL import Image

    transformers: Any = importlib.import_module("transformers")
    model = transformers.CLIPModel.from_pretrained(export).double().eval()
    processor = transformers.AutoImageProcessor.from_pretrained(export, backend="pil")
    pictures = [Image.open(proof / name) for name in asked["pictures"]]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"].double()
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    texts = tokenizer(asked["texts"], padding=True, truncation=True, return_tensors="pt")
    output = model(**texts, pixel_values=pixels)
    return {
        "image features": torch.nn.functional.normalize(output.image_embeds, dim=-1),
        "text features": torch.nn.functional.normalize(output.text_embeds, dim=-1),
        "temperature": model.logit_scale.exp().reshape(1),
    }


def idefics3(export: str, proof: Path, asked: Any, given: Any) -> dict[str, Any]:
    """Compute the logits of a conversation about a picture, and the tokens of a text."""
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForImageTextToText.from_pretrained(export).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    tiles = given["tiles"].permute(0, 3, 1, 2).double() / 255
    mean, deviation = (given[name].double().view(3, 1, 1) for name in ("mean", "deviation"))
    output = model(input_ids=given["tokens"], pixel_values=((tiles - mean) / deviation)[None])
    spelt = tokenizer(asked["texts"], add_special_tokens=False, return_tensors="pt").input_ids
    return {"logits": output.logits, "tokens": spelt}


def encoder(export: str, proof: Path, asked: Any, given: Any) -> dict[str, Any]:
    """Compute an encoder's output for each text's first token."""
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModel.from_pretrained(export).double().eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    made = tokenizer(asked["texts"], padding=True, return_tensors="pt")
    output = model(input_ids=made["input_ids"], attention_mask=made["attention_mask"])
    return {"text features": output.last_hidden_state[:, 0], "tokens": made["input_ids"]}


if __name__ == "__main__":
    main(*sys.argv[1:3])
