"""The first held-out samples with what the model makes of them, for a reader who wants to look.

Pictures are always encoded anew, small: that bounds the page, and leaves metadata such as a camera's position
behind. Nothing here is called for a private dataset.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from tasks.core.errors import DataError
from tasks.core.pages import image_uri
from tasks.core.units import shorten
from tasks.dataset.formats.images import MEMBERS as IMAGE_MEMBERS
from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.geometry import ZYX, axes_of, spacing_of
from tasks.dataset.preview.pictures import slices
from tasks.dataset.rejects import Reject
from tasks.evaluation.results import Prediction, is_right
from tasks.loader.bad import BadSampleError
from tasks.loader.decoders import decode_image, decode_json, decode_text, volume_of
from tasks.loader.indexed import IndexedReader

MOST = 24
MOST_PICTURES = 4
"""Of one conversation."""
PLANES_SHOWN = 3
"""Axial, coronal and sagittal; the same in a second window would follow."""
TINY = 64
"""Images below this many pixels on both sides are shown as they are, pixel by pixel."""
LONGEST = 240
"""Other images are scaled down to this many pixels, twice their size on the page."""


@dataclass(frozen=True)
class GallerySample:
    """One sample as the page shows it; `image` is a data URI or None, `right` None without predictions."""

    caption: str
    alt: str
    image: str | None = None
    width: int = 0
    height: int = 0
    said: Sequence[Prediction] = ()
    """What the model says of it: one figure, or an answer to each of its questions."""
    others: Sequence[str] = ()
    """The data URIs of further pictures: of a conversation, or slices of a scan."""
    is_bad: bool = False
    """Whether it cannot be read as it was written; the caption says why."""

    @property
    def tiny(self) -> bool:
        return max(self.width, self.height) < TINY

    @property
    def is_conversation(self) -> bool:
        return any(one.question and one.score is None for one in self.said)

    @property
    def verdicts(self) -> list[bool]:
        """Whether each prediction is right."""
        return [is_right(one) for one in self.said]

    @property
    def right(self) -> bool | None:
        return all(self.verdicts) if self.said else None


def read_items(
    version: Path, split: str, predictions: Mapping[str, Sequence[Prediction]]
) -> list[GallerySample]:
    """The first samples of a split in storage order; DataError or OSError when the split cannot be read.

    A sample that cannot be read or decoded is shown without its image, and its caption says why.
    """
    reader = IndexedReader(version, split)
    items = []
    for position in range(min(MOST, len(reader))):
        try:
            sample = reader.read(position)
        except BadSampleError as error:
            items.append(GallerySample(str(error), f"Held-out image {position + 1}", is_bad=True))
            continue
        items.append(_item(sample.members, position + 1, predictions.get(sample.key, ())))
    return items


def _item(members: Mapping[str, bytes], number: int, said: Sequence[Prediction]) -> GallerySample:
    alt = f"Held-out image {number}"
    caption = _caption(members)
    if stored.member_of(members) is not None:
        return _scan(members, caption, number, said)
    pictures = [name for name in sorted(members) if name.rpartition(".")[2] in IMAGE_MEMBERS]
    if not pictures:
        return GallerySample(caption, alt, said=said)
    try:
        encoded = [_encode(decode_image(members[name])) for name in pictures[:MOST_PICTURES]]
    except DataError as error:
        return GallerySample(f"{caption} ({error})", alt, said=said)
    uri, width, height = encoded[0]
    return GallerySample(caption, alt, uri, width, height, said, [other for other, _, _ in encoded[1:]])


def _scan(
    members: Mapping[str, bytes], caption: str, number: int, said: Sequence[Prediction]
) -> GallerySample:
    """A CT volume by three slices through its middle, in the window of the lungs."""
    alt = f"Held-out scan {number}"
    try:
        facts = decode_json(members.get("json", b"{}"))
        axes = axes_of(facts.get("axes")) or ZYX
        spacing = spacing_of(facts.get("spacing_mm"), axes)
        first, *others = slices(volume_of(members), axes, spacing, alt)[:PLANES_SHOWN]
    except (DataError, Reject, AttributeError) as error:
        return GallerySample(f"{caption} ({error})", alt, said=said)
    return GallerySample(
        caption, alt, first.uri, first.width, first.height, said, [one.uri for one in others]
    )


def _caption(members: Mapping[str, bytes]) -> str:
    """What the sample says of itself; of a conversation how it begins."""
    try:
        if "txt" in members:
            return shorten(decode_text(members["txt"]))
        facts = decode_json(members["json"]) if "json" in members else {}
    except DataError as error:
        return str(error)
    turns = facts.get("messages") if isinstance(facts, dict) else None
    return shorten(turns[0]["user"]) if turns else "no caption"


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
