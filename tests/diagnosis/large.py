"""A transform whose samples are as large as a CLIP model's, whatever the picture."""

from __future__ import annotations

from typing import Any

import torch

SIDE = 224


def enlarged(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    return {"image": torch.full((3, SIDE, SIDE), float(len(sample["png"]))), "tokens": torch.zeros(77).long()}
