"""open_clip's picture transform in two halves: cropped in a loader worker, normalised where the model is.

What crosses between processes and to the GPU are bytes, a quarter of the floats, and a whole batch is
normalised at once. On a CPU both halves together give what open_clip's transform gives, to the bit.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import Compose

from tasks.models.openclip import open_clip


class Crop:
    """A picture to [height, width, 3] uint8 of the model's size, as `settings` (a PreprocessCfg) has it.

    For training it is cropped at random, by torch's global generator.
    """

    def __init__(self, settings: open_clip.transform.PreprocessCfg, is_train: bool) -> None:
        *steps, _, _ = open_clip.transform.image_transform_v2(settings, is_train).transforms
        self._steps = Compose(steps)  # all but the last two, which `normalised` does

    def __call__(self, picture: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(self._steps(picture)))


def normalised(crops: Tensor, settings: open_clip.transform.PreprocessCfg) -> Tensor:
    """[samples, height, width, 3] uint8 to [samples, 3, height, width] float32, less the mean of `settings`
    and over its deviation."""
    pixels = crops.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    return pixels.sub_(_channels(settings.mean, crops.device)).div_(_channels(settings.std, crops.device))


@lru_cache
def _channels(values: tuple[float, ...], device: torch.device) -> Tensor:
    """[3, 1, 1], put on the device once and not with every batch."""
    return torch.tensor(values, device=device).view(-1, 1, 1)
