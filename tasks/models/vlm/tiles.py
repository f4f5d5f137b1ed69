"""A picture to the tiles that a vision tower takes, as nanoVLM cuts it.

Source: nanoVLM's data/custom_transforms.py, DynamicResize and GlobalAndSplitImages. The longer side becomes
`max_side` pixels, both sides multiples of a tile; a picture of several tiles is preceded by all of it in one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import resize

from tasks.models.vlm.chat_text import Grid


class Tiles(NamedTuple):
    """How pictures are cut: the side of a tile and the longest side in pixels, and whether smaller pictures
    are enlarged to that."""

    side: int
    max_side: int
    upscale: bool

    @property
    def grid(self) -> int:
        """The most tiles a side."""
        return math.ceil(self.max_side / self.side)

    def grid_of(self, width: int, height: int) -> Grid:
        """Rows and columns of a picture's tiles."""
        longer, shorter = max(width, height), min(width, height)
        most = max(self.max_side // self.side, 1)
        long_tiles = most if self.upscale else min(most, math.ceil(longer / self.side))
        short_tiles = -(-shorter * long_tiles // longer)
        return (short_tiles, long_tiles) if width >= height else (long_tiles, short_tiles)

    def cut(self, picture: Image.Image) -> Tensor:
        """[tiles, side, side, 3] uint8, the whole picture first where there are several."""
        rows, columns = self.grid_of(*picture.size)
        sized = picture.resize((columns * self.side, rows * self.side), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(sized))
        cut = pixels.reshape(rows, self.side, columns, self.side, 3).permute(0, 2, 1, 3, 4)
        tiles = cut.reshape(rows * columns, self.side, self.side, 3)
        if len(tiles) == 1:
            return tiles
        whole: Tensor = resize(pixels.permute(2, 0, 1), [self.side, self.side]).permute(1, 2, 0)
        return torch.cat([whole[None], tiles])
