"""The first held-out samples with what the model makes of them, for a reader who wants to look.

Pictures are always encoded anew, small: that bounds the page, and leaves metadata such as a camera's position
behind. Nothing here is called for a private dataset.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tasks.core.errors import DataError
from tasks.core.pages import image_uri
from tasks.core.units import shorten
from tasks.dataset.formats.images import MEMBERS as IMAGE_MEMBERS
from tasks.evaluation.results import Prediction
from tasks.loader.bad import BadSampleError
from tasks.loader.decoders import decode_text, image_of
from tasks.loader.indexed import IndexedReader

MOST = 24
TINY = 64
"""Images below this many pixels on both sides are shown as they are, pixel by pixel."""
LONGEST = 240
"""Other images are scaled down to this many pixels, twice their size on the page."""


@dataclass(frozen=True)
class Item:
    """One sample as the page shows it; `image` is a data URI or None, `right` None without a prediction."""

    caption: str
    alt: str
    image: str | None = None
    width: int = 0
    height: int = 0
    label: str | None = None
    predicted: str | None = None
    is_bad: bool = False
    """Whether it cannot be read as it was written; the caption says why."""

    @property
    def tiny(self) -> bool:
        return max(self.width, self.height) < TINY

    @property
    def right(self) -> bool | None:
        return None if self.predicted is None else self.predicted == self.label


def read_items(version: Path, split: str, predictions: Mapping[str, Prediction]) -> list[Item]:
    """The first samples of a split in storage order; DataError or OSError when the split cannot be read.

    A sample that cannot be read or decoded is shown without its image, and its caption says why.
    """
    reader = IndexedReader(version, split)
    items = []
    for position in range(min(MOST, len(reader))):
        try:
            sample = reader.read(position)
        except BadSampleError as error:
            items.append(Item(str(error), f"Held-out image {position + 1}", is_bad=True))
            continue
        prediction = predictions.get(sample.key)
        said = (prediction.label, prediction.predicted) if prediction else (None, None)
        items.append(_item(sample.members, position + 1, *said))
    return items


def _item(members: Mapping[str, bytes], number: int, label: str | None, predicted: str | None) -> Item:
    alt = f"Held-out image {number}"
    try:
        caption = shorten(decode_text(members["txt"])) if "txt" in members else "no caption"
    except DataError as error:
        caption = str(error)
    if not any(name in members for name in IMAGE_MEMBERS):
        return Item(caption, alt, label=label, predicted=predicted)
    try:
        picture = image_of(members)
    except DataError as error:
        return Item(f"{caption} ({error})", alt, label=label, predicted=predicted)
    uri, width, height = _encode(picture)
    return Item(caption, alt, uri, width, height, label, predicted)


def _encode(picture: Image.Image) -> tuple[str, int, int]:
    """A data URI of the picture with its width and height: lossless while tiny, a small JPEG otherwise."""
    content = io.BytesIO()
    clean = Image.new("RGB", picture.size)
    clean.paste(picture)
    if max(picture.size) < TINY:
        clean.save(content, "PNG", optimize=True)
        return image_uri(content.getvalue(), "image/png"), *clean.size
    clean.thumbnail((LONGEST, LONGEST))
    clean.save(content, "JPEG", quality=80)
    return image_uri(content.getvalue(), "image/jpeg"), *clean.size
