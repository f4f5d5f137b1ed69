"""What a reinforced sample (MobileCLIP) stores beside its image, to be shown: crops, synthetic captions."""

from __future__ import annotations

from tasks.core.errors import DataError
from tasks.dataset.modalities import reinforced
from tasks.dataset.preview.pictures import Box
from tasks.dataset.rejects import Reject


def crops_of(content: bytes) -> list[Box]:
    """Rectangles (x, y, width, height) of a `paug.json`; DataError when it is none."""
    try:
        found = enumerate(reinforced.augmentations(content))
        crops = [reinforced.crop_of(number, augmentation) for number, augmentation in found]
    except Reject as reject:
        raise DataError(reject.detail) from None
    return [(crop.left, crop.top, crop.width, crop.height) for crop in crops]


def synthetic_captions(content: bytes) -> list[str]:
    """The texts of a `syn.json`, of all its lists; DataError when it holds none."""
    try:
        lists = reinforced.captions(content).values()
    except Reject as reject:
        raise DataError(reject.detail) from None
    return [text for texts in lists for text in texts]
