"""Query an export with nanoVLM's own sources, whose folder is an argument: its model and its tokenizer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(export: str, proof: str, source: str) -> None:
    """Answer the question in the folder `proof` and write `answers.safetensors` there."""
    sys.path.insert(0, source)
    import torch
    from models.vision_language_model import VisionLanguageModel  # type: ignore[import-not-found]
    from safetensors.torch import load_file, save_file

    asked = json.loads(Path(proof, "question.json").read_text(encoding="utf-8"))
    given = load_file(Path(proof, "question.safetensors"))
    os.chdir(export)  # config.json finds the tokenizer from there until the export has its final place
    model = VisionLanguageModel.from_pretrained(".").double().eval()
    tiles = given["tiles"].permute(0, 3, 1, 2).double() / 255
    with torch.inference_mode():
        features, _ = model(given["tokens"], tiles)
        logits = model.decoder.head(features)
    spelt = model.tokenizer(asked["texts"], add_special_tokens=False, return_tensors="pt").input_ids
    answers = {"logits": logits, "tokens": spelt}
    save_file(
        {name: value.contiguous().clone() for name, value in answers.items()},
        Path(proof, "answers.safetensors"),
        {"library": f"nanoVLM in {source}"},
    )


if __name__ == "__main__":
    main(*sys.argv[1:4])
