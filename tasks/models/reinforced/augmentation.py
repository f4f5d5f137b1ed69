"""Augmentations drawn for teachers, in the form that `paug.json` stores them.

A crop as torchvision's RandomResizedCrop draws it (8 to 100 % of the area, 3:4 to 4:3) and two operations of
its RandAugment at magnitude 9 of 30, which are MobileCLIP's settings. Drawn from a number alone, so that what
a sample gets depends neither on its shard nor on how often the work was broken off.
"""

from __future__ import annotations

import math
import random
from typing import Any

OPERATIONS = 2
LARGEST_TURN = 30.0
BINS, MAGNITUDE = 31, 9
SHARE = MAGNITUDE / (BINS - 1)
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
TRIES = 10
TRANSLATED = 150 / 331
"""Of the side: the farthest that RandAugment moves an image."""


def draw(width: int, height: int, side: int, seed: int | str) -> list[Any]:
    """`[[top, left, height, width], [[operation, magnitude], …]]` for an image of so many pixels that the
    teachers see in `side` pixels."""
    source = random.Random(seed)
    return [_crop(width, height, source), [_operation(side, source) for _ in range(OPERATIONS)]]


def _crop(width: int, height: int, source: random.Random) -> list[int]:
    for _ in range(TRIES):
        area = width * height * source.uniform(*AREA)
        ratio = math.exp(source.uniform(*map(math.log, RATIO)))
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            return [source.randint(0, height - high), source.randint(0, width - wide), high, wide]
    wide = min(width, max(round(height * RATIO[1]), 1))  # the middle, as wide or high as may be
    high = min(height, max(round(width / RATIO[0]), 1))
    return [(height - high) // 2, (width - wide) // 2, high, wide]


def magnitudes(side: int) -> list[tuple[float, bool]]:
    """Of each operation by its number, and whether it goes both ways."""
    moved, factor = TRANSLATED * side * SHARE, 0.9 * SHARE
    return [
        (0.0, False),
        *[(0.3 * SHARE, True)] * 2,
        *[(moved, True)] * 2,
        (LARGEST_TURN * SHARE, True),
        *[(factor, True)] * 4,
        (8 - round(MAGNITUDE / ((BINS - 1) / 4)), False),
        (255.0 * (1 - SHARE), False),
        *[(0.0, False)] * 2,
    ]


def _operation(side: int, source: random.Random) -> list[float]:
    known = magnitudes(side)
    number = source.randrange(len(known))
    magnitude, goes_both_ways = known[number]
    return [number, -magnitude if goes_both_ways and source.random() < 0.5 else magnitude]
