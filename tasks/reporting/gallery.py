"""The first held-out samples with the model's predictions, for a reader to look at.

Pictures are always encoded again at a small size: this bounds the page and removes metadata such as a
camera's position. Nothing here is called for a private dataset.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from tasks.core.errors import DataError
from tasks.core.pages import image_uri
from tasks.core.units import shorten
from tasks.dataset.formats.images import MEMBERS as IMAGE_MEMBERS
from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.geometry import ZYX, axes_of, spacing_of
from tasks.dataset.preview.pictures import slices
from tasks.dataset.preview.tiles import origins_of
from tasks.dataset.version.rejects import Reject
from tasks.evaluation.results import Prediction, is_right
from tasks.loader.bad import BadSampleError
from tasks.loader.decoders import decode_image, decode_json, decode_text, volume_of
from tasks.loader.indexed import IndexedReader

MOST = 24
MOST_PICTURES = 4
"""How many pictures of one conversation are shown."""
PLANES_SHOWN = 3
"""Axial, coronal and sagittal; the preview's further slices repeat them in a second window."""
TINY = 64
"""Images below this many pixels on both sides are shown at full resolution."""
LONGEST = 240
"""Other images are scaled down to this many pixels, twice their size on the page."""


EncodedPicture = tuple[str, int, int]
"""A data URI, and the width and height of the picture."""


@dataclass(frozen=True)
class GallerySample:
    """One sample for the page; `image` is a data URI or None, and `right` is None without predictions."""

    caption: str
    alt: str
    image: str | None = None
    width: int = 0
    height: int = 0
    predictions: Sequence[Prediction] = ()
    """The model's prediction, or its answer to each question."""
    others: Sequence[str] = ()
    """The data URIs of further pictures of a conversation, or slices of a scan."""
    is_bad: bool = False
    """Whether it cannot be read; the caption is the reason."""
    key: str = ""
    origin: str = ""
    """Its name and place in the source, as far as they are known."""

    @property
    def tiny(self) -> bool:
        return max(self.width, self.height) < TINY

    @property
    def is_conversation(self) -> bool:
        return any(one.question and one.score is None for one in self.predictions)

    @property
    def verdicts(self) -> list[bool]:
        """Whether each prediction is right."""
        return [is_right(one) for one in self.predictions]

    @property
    def right(self) -> bool | None:
        return all(self.verdicts) if self.predictions else None


def read_items(
    version: Path, split: str, predictions: Mapping[str, Sequence[Prediction]]
) -> list[GallerySample]:
    """Read the first samples of a split in storage order; DataError or OSError when the split cannot be read.

    A sample that cannot be read or decoded has no image, and its caption contains the reason.
    """
    reader = IndexedReader(version, split)
    rows = range(min(MOST, len(reader)))
    origins = origins_of(version, split, rows)
    items = []
    for position in rows:
        try:
            sample = reader.read(position)
        except BadSampleError as error:
            item = GallerySample(str(error), f"Held-out image {position + 1}", is_bad=True)
        else:
            item = _item(sample.members, position + 1, predictions.get(sample.key, ()))
            item = replace(item, key=sample.key)
        items.append(replace(item, origin=origins.get(position, "")))
    return items


def _item(members: Mapping[str, bytes], number: int, predictions: Sequence[Prediction]) -> GallerySample:
    is_scan = stored.member_of(members) is not None
    alt, caption = f"Held-out {'scan' if is_scan else 'image'} {number}", _caption(members)
    try:
        pictures = _slices(members, alt) if is_scan else _pictures(members)
    except (DataError, Reject, AttributeError) as error:
        return GallerySample(f"{caption} ({error})", alt, predictions=predictions)
    if not pictures:
        return GallerySample(caption, alt, predictions=predictions)
    (uri, width, height), *others = pictures
    return GallerySample(caption, alt, uri, width, height, predictions, [other for other, _, _ in others])


def _pictures(members: Mapping[str, bytes]) -> list[EncodedPicture]:
    names = [name for name in sorted(members) if name.rpartition(".")[2] in IMAGE_MEMBERS]
    return [_encode(decode_image(members[name])) for name in names[:MOST_PICTURES]]


def _slices(members: Mapping[str, bytes], alt: str) -> list[EncodedPicture]:
    """Show a CT volume by three slices through its middle, in the window of the lungs."""
    facts = decode_json(members.get("json", b"{}"))
    axes = axes_of(facts.get("axes")) or ZYX
    spacing = spacing_of(facts.get("spacing_mm"), axes)
    shown = slices(volume_of(members), axes, spacing, alt)[:PLANES_SHOWN]
    return [(one.uri, one.width, one.height) for one in shown]


def _caption(members: Mapping[str, bytes]) -> str:
    """Return the sample's text; of a conversation, its first question."""
    try:
        if "txt" in members:
            return shorten(decode_text(members["txt"]))
        facts = decode_json(members["json"]) if "json" in members else {}
    except DataError as error:
        return str(error)
    turns = facts.get("messages") if isinstance(facts, dict) else None
    return shorten(turns[0]["user"]) if turns else "no caption"


def _encode(picture: Image.Image) -> EncodedPicture:
    """Encode the picture: lossless while it is tiny, as a small JPEG otherwise."""
    content = io.BytesIO()
    clean = Image.new("RGB", picture.size)
    clean.paste(picture)
    if max(picture.size) < TINY:
        clean.save(content, "PNG", optimize=True)
        return image_uri(content.getvalue(), "image/png"), *clean.size
    clean.thumbnail((LONGEST, LONGEST))
    clean.save(content, "JPEG", quality=80)
    return image_uri(content.getvalue(), "image/jpeg"), *clean.size
