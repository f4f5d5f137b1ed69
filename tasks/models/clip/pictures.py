"""open_clip's picture transform in two halves: crop in a loader worker, normalise on the model's device.

Between processes and to the GPU pictures travel as bytes, a quarter of the size of floats, and a whole batch
is normalised at once. Where a model is judged, both halves together equal open_clip's transform to the bit
on a CPU. A training draws the same crops as open_clip's, and cuts them by `crops`, in a quarter of the time.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import Compose, RandomResizedCrop

from tasks.dataset.formats.pixels import Box
from tasks.loader.crops import cut
from tasks.loader.decoders import image_of, open_image, picture_name
from tasks.models.clip.clip_options import Augment
from tasks.models.clip.openclip import open_clip


class Crop:
    """Maps a picture to [height, width, 3] uint8 of the model's size, by `settings` (a PreprocessCfg)."""

    def __init__(self, settings: open_clip.transform.PreprocessCfg) -> None:
        *steps, _, _ = open_clip.transform.image_transform_v2(settings, is_train=False).transforms
        self._steps = Compose(steps)  # `normalised` does the last two

    def __call__(self, picture: Image.Image) -> Tensor:
        return torch.from_numpy(np.array(self._steps(picture)))


class RandomCrop:
    """Maps a sample's picture to [height, width, 3] uint8, cropped and changed at random, for training.

    It draws from torch's global generator and from `random`'s, as open_clip does.
    """

    def __init__(self, settings: open_clip.transform.PreprocessCfg, augment: Augment) -> None:
        with warnings.catch_warnings():  # open_clip also warns about settings that it uses
            warnings.simplefilter("ignore")
            given = augment.model_dump(exclude={"ratio"})
            transform = open_clip.transform.image_transform_v2(settings, is_train=True, aug_cfg=given)
        self._cut: RandomResizedCrop
        self._cut, _, *self._changes, _, _ = transform.transforms  # without its conversion to RGB
        self._cut.ratio = augment.ratio

    def __call__(self, members: Mapping[str, bytes]) -> Tensor:
        image = open_image(members[picture_name(members)])
        pixels = cut(image, self._draw(image.size), self._cut.size, self._cut.interpolation)
        if not self._changes:
            return pixels
        picture = Image.fromarray(pixels.numpy())
        for change in self._changes:
            picture = change(picture)
        return torch.from_numpy(np.array(picture))

    def _draw(self, size: tuple[int, int]) -> Box:
        """Draw the crop of a picture of this (width, height)."""
        stand_in = torch.empty((1, size[1], size[0]), device="meta")
        return Box(*self._cut.get_params(stand_in, self._cut.scale, self._cut.ratio))


class TimmCrop:
    """Maps a sample's picture to [3, height, width] float32, changed at random by timm and normalised, for
    training. It draws from the same generators."""

    def __init__(self, settings: open_clip.transform.PreprocessCfg, augment: Augment) -> None:
        given = augment.model_dump(exclude={"color_jitter_prob", "gray_scale_prob"})
        self._steps = open_clip.transform.image_transform_v2(settings, is_train=True, aug_cfg=given)

    def __call__(self, members: Mapping[str, bytes]) -> Tensor:
        pixels: Tensor = self._steps(image_of(members))
        return pixels


def normalised(crops: Tensor, settings: open_clip.transform.PreprocessCfg) -> Tensor:
    """Map [samples, height, width, 3] uint8 to [samples, 3, height, width] float32, normalised by the mean
    and deviation of `settings`; crops that are floats are normalised already."""
    if crops.is_floating_point():
        return crops
    pixels = crops.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format).div_(255)
    for channel, (mean, deviation) in enumerate(zip(settings.mean, settings.std, strict=True)):
        pixels[:, channel].sub_(mean).div_(deviation)  # numbers, which are there without a copy to the GPU
    return pixels
