"""How CT-CLIP prepares a volume for training, written anew from its scripts/data.py, with torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional


def prepared(
    volume: np.ndarray,
    spacing: Sequence[float],
    target: Sequence[float],
    shape: Sequence[int],
    window: tuple[int, int] = (-1000, 1000),
) -> np.ndarray:
    """A volume (D, H, W) in HU, resampled, clipped, cropped and padded; float64 HU."""
    sizes = [int(side * (old / new)) for side, old, new in zip(volume.shape, spacing, target, strict=True)]
    tensor = torch.from_numpy(volume.astype(np.float64))[None, None]
    tensor = functional.interpolate(tensor, size=sizes, mode="trilinear", align_corners=False)[0, 0]
    array = np.clip(tensor.numpy(), *window)
    starts = [max((side - wanted) // 2, 0) for side, wanted in zip(array.shape, shape, strict=True)]
    depth, height, width = (
        slice(start, min(start + wanted, side))
        for start, wanted, side in zip(starts, shape, array.shape, strict=True)
    )
    array = array[depth, height, width]
    before = [(wanted - side) // 2 for side, wanted in zip(array.shape, shape, strict=True)]
    padding = [
        (front, wanted - side - front) for front, side, wanted in zip(before, array.shape, shape, strict=True)
    ]
    return np.pad(array, padding, constant_values=window[0])
