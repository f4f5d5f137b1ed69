"""Query an export with open_clip alone: its model, its picture transform and its tokenizer."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(export: str, proof: str) -> None:
    """Answer the question in the folder `proof` and write `answers.safetensors` there."""
    import open_clip
    import torch
    from PIL import Image
    from safetensors.torch import save_file

    asked = json.loads(Path(proof, "question.json").read_text(encoding="utf-8"))
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{export}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{export}")
    model = model.double().eval()
    pixels = torch.stack([transform(Image.open(Path(proof, name))) for name in asked["pictures"]])
    with torch.inference_mode():
        answers = {
            "image features": model.encode_image(pixels.double(), normalize=True),
            "text features": model.encode_text(tokenizer(asked["texts"]), normalize=True),
            "temperature": model.logit_scale.exp().reshape(1),
        }
    library = f"open_clip {open_clip.__version__}"
    save_file(
        {name: value.clone() for name, value in answers.items()},
        Path(proof, "answers.safetensors"),
        {"library": library},
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
