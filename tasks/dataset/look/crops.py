"""What a reinforced sample (MobileCLIP) stores beside its image: synthetic captions and augmentations.

An augmentation is `[[top, left, height, width], [[op, magnitude], …]]`, the crop in pixels of the stored
image; `param_aug` is a list of them or that list as a JSON string (both are found in the wild).
"""

from __future__ import annotations

import json
from typing import Any

from tasks.core.errors import DataError
from tasks.dataset.look.pictures import Box

FARTHEST = 1e6


def crops_of(reinforcement: Any) -> list[Box]:
    """Rectangles (x, y, width, height) of the `paug.json` given; DataError when it is none."""
    augmentations = reinforcement.get("param_aug") if isinstance(reinforcement, dict) else None
    if isinstance(augmentations, str):
        try:
            augmentations = json.loads(augmentations)
        except (ValueError, RecursionError):
            raise DataError("paug.json: param_aug is a string that is no JSON") from None
    if not isinstance(augmentations, list):
        raise DataError("paug.json: there is no list param_aug")
    crops = [_crop(augmentation) for augmentation in augmentations]
    return [crop for crop in crops if crop is not None]


def synthetic_captions(captions: Any) -> list[str]:
    """The texts of a `syn.json`, whichever of its keys hold them; DataError when none does."""
    if not isinstance(captions, dict):
        raise DataError("syn.json holds no JSON object")
    lists = [texts for texts in captions.values() if isinstance(texts, list)]
    found = [text for texts in lists for text in texts if isinstance(text, str)]
    if not found:
        raise DataError("syn.json holds no captions")
    return found


def _crop(augmentation: Any) -> Box | None:
    """The first entry of four numbers, which is the crop; None where this augmentation has none."""
    entries = augmentation if isinstance(augmentation, list) else []
    for entry in entries:
        if isinstance(entry, list) and len(entry) == 4 and all(map(_is_place, entry)):
            top, left, height, width = (float(value) for value in entry)
            return left, top, width, height
    return None


def _is_place(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < FARTHEST
