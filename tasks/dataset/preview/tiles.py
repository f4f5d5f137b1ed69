"""One sample as the page shows it: pictures, captions, turns, and its faults.

A sample that cannot be shown becomes a tile that states why. A new modality is a function here and a line in
SHOWN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from PIL import Image

from tasks.core.errors import DataError
from tasks.core.units import NOTHING, counted, shorten
from tasks.dataset.formats.checks import is_blank, json_object
from tasks.dataset.formats.images import MEMBERS
from tasks.dataset.formats.volumes import stored
from tasks.dataset.formats.volumes.geometry import ZYX, Spacing, axes_of, spacing_of
from tasks.dataset.modalities import reinforced
from tasks.dataset.preview.pictures import (
    NotShown,
    Picture,
    Rectangle,
    encode,
    middle_slice,
    open_image,
    open_scan,
    slices,
    thumbnail,
)
from tasks.dataset.sample_reader import SampleReader, spread
from tasks.dataset.tar.format import Sample
from tasks.dataset.version.rejects import Reject, printable
from tasks.dataset.version.tables import read_origins

TEXT, REPORT, MESSAGE, ORIGIN = 280, 700, 300, 160
"""The most characters of a caption, of a report, of a message about them, and of a place in the source."""
COMPACT, COMPACT_BYTES = 120, 5_000
"""The most pixels of a compact tile's picture, which is shown at half of that, and the most bytes."""
MESSAGES, PICTURES, CROPS, CAPTIONS, RATINGS = 4, 3, 6, 5, 6
"""The most of each that a tile shows."""


@dataclass
class Tile:
    """A sample on the page. `turns` are (speaker, text), `more` holds texts besides the caption, and `faults`
    lists what could not be shown."""

    key: str
    shard: str
    pictures: list[Picture] = field(default_factory=list)
    caption: str = ""
    more: list[str] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    codes: Sequence[str] = ()
    """The codes of verify's findings about the sample."""
    split: str = ""
    """The split, where the page does not name it above the tile."""
    origin: str = ""
    """The name and place in the source, as far as they are known."""


def legible(value: Any, limit: int) -> str:
    """Return the beginning of a text from the data, on one line. Invisible characters (control characters,
    marks that change the direction of writing, bytes that were not text) are escaped, such as `\\u202e`."""
    text = " ".join(printable(str(value)[: 4 * limit]).split())  # runs of white space become one space
    escaped = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return shorten("".join(escaped), limit)


def without_folder(message: object, folder: Path) -> str:
    """Return a message without its full stop and without the folder's path, because pages are passed on."""
    path = rf"(?<![\w/.-]){re.escape(str(folder))}"
    named = re.sub(rf"{path}/", "", str(message))
    if "/" in str(folder):  # otherwise it may be an ordinary word
        named = re.sub(rf"{path}(?![\w-])", "this folder", named)
    return legible(named, MESSAGE).rstrip(".")


def origins_of(version: Path, split: str, rows: Sequence[int]) -> dict[int, str]:
    """Return where samples of a split came from, as a tile shows it, by row; nothing of a table that cannot
    be read, which the page reports where it shows the numbers."""
    try:
        return {row: legible(one, ORIGIN) for row, one in read_origins(version, split, rows).items()}
    except DataError:
        return {}


def read_tile(reader: SampleReader, row: int, modality: str) -> Tile:
    """Return sample `row` as a tile; a sample that cannot be read becomes a tile with the fault."""
    shard = reader.shard(row)
    try:
        sample = reader.read(row)
    except DataError as error:
        return Tile(f"sample {row + 1:,}", shard, faults=[str(error)])
    return tile_of(sample, modality, shard)


def tile_of(sample: Sample, modality: str, shard: str) -> Tile:
    """Return a sample of a modality in SHOWN as a tile."""
    tile = Tile(legible(sample.key, 80), shard)
    SHOWN[modality](sample.members, tile)
    return tile


def compact_tile(reader: SampleReader, row: int, modality: str, note: str = "") -> Tile:
    """Return sample `row` as a tile of one small picture and the beginning of its text."""
    shard = reader.shard(row)
    try:
        sample = reader.read(row)
    except DataError as error:
        return Tile(f"sample {row + 1:,}", shard, faults=[str(error)], split=reader.split)
    tile = Tile(legible(sample.key, 80), shard, notes=[note] if note else [], split=reader.split)
    with _faults_noted(tile):
        image, width, height = glimpse(sample.members, modality, COMPACT)
        picture = encode(image, f"Image of {tile.key}", longest=COMPACT, most_bytes=COMPACT_BYTES)
        tile.pictures.append(replace(picture, width=width, height=height))
    with _faults_noted(tile):
        tile.caption = shorten(_spoken(sample.members), TEXT // 2)
    return tile


def glimpse(members: Mapping[str, bytes], modality: str, longest: int) -> tuple[Image.Image, int, int]:
    """Return the picture that stands for a sample, for which `longest` pixels are enough, and its original
    width and height: the first image, or the middle slice of a volume. DataError if there is none."""
    if modality == "volume_report":
        name = stored.member_of(members)
        if name is None:
            raise DataError(f"there is no volume among {_names(members)}")
        facts = json_object(members.get("json", b"{}"), "source.unreadable")
        axes, spacing = axes_of(facts.get("axes")) or ZYX, _spacing(facts)
        image = middle_slice(open_scan(name, members[name]), axes, spacing)
        return image, *image.size
    names = sorted(name for name in members if name.rpartition(".")[2] in MEMBERS)
    if not names:
        raise NotShown("no picture")
    return open_image(members[names[0]], longest, turns=modality != "reinforced")


def _spoken(members: Mapping[str, bytes]) -> str:
    """Return a sample's caption, or the first turn of its conversation."""
    if "txt" in members:
        return members["txt"].decode("utf-8", "replace")
    messages = json_object(members.get("json", b"{}"), "source.unreadable").get("messages")
    first = messages[0] if isinstance(messages, list) and messages else {}
    return str(first.get("user", "")) if isinstance(first, dict) else ""


def _image_text(members: Mapping[str, bytes], tile: Tile, crops: tuple[Rectangle, ...] = ()) -> None:
    with _faults_noted(tile):
        name = next((name for name in MEMBERS if name in members), None)
        if name is None:
            raise DataError(f"there is no image among {_names(members)}")
        picture = thumbnail(members[name], f"Image of {tile.key}", crops)
        tile.pictures.append(picture)
        tile.notes.append(f"{picture.width} × {picture.height}")
    tile.caption = _text(members, tile, TEXT)


def _reinforced(members: Mapping[str, bytes], tile: Tile) -> None:
    boxes: list[Rectangle] = []
    with _faults_noted(tile):
        found = enumerate(reinforced.augmentations(_member(members, "paug.json")))
        crops = [reinforced.crop_of(number, augmentation) for number, augmentation in found]
        boxes = [(crop.left, crop.top, crop.width, crop.height) for crop in crops]
    drawn = tuple(boxes[index] for index in spread(len(boxes), CROPS))
    _image_text(members, tile, drawn)
    with _faults_noted(tile):
        texts = chain.from_iterable(reinforced.captions(_member(members, "syn.json")).values())
        tile.more = [shorten(text, TEXT // 2) for text in islice(texts, CAPTIONS)]
    if boxes:
        shown = f"{len(drawn)} of " if len(drawn) < len(boxes) else ""
        tile.notes.append(shown + counted(len(boxes), "crop"))


def _volume_report(members: Mapping[str, bytes], tile: Tile) -> None:
    facts: Mapping[str, Any] = {}
    with _faults_noted(tile):
        facts = json_object(_member(members, "json"), "source.unreadable")
    spacing = _spacing(facts)
    with _faults_noted(tile):
        name = stored.member_of(members)
        if name is None:
            raise DataError(f"there is no volume among {_names(members)}")
        scan, axes = open_scan(name, members[name]), axes_of(facts.get("axes"))
        order = f"({', '.join(axes)})" if axes else "of no stated order, shown as (z, y, x)"
        tile.notes.append(f"{' × '.join(map(str, scan.shape))} voxels {order}")
        tile.pictures = slices(scan, axes or ZYX, spacing, f"Slice of {tile.key}")
    distances = " × ".join(f"{value:g}" for value in spacing or ())
    tile.notes.append(f"{distances} mm" if spacing else "no spacing is stated: voxels are shown as cubes")
    if isinstance(labels := facts.get("labels"), dict):
        present = [str(name) for name, value in labels.items() if value]
        unknown = sum(value is None for value in labels.values())
        of = f"{len(labels)}{f', {unknown} unknown' if unknown else ''}"
        tile.notes.append(shorten(f"labels: {', '.join(present) or 'none'} of {of}", TEXT))
    tile.caption = _text(members, tile, REPORT)


def _spacing(facts: Mapping[str, Any]) -> Spacing | None:
    with suppress(Reject):
        return spacing_of(facts.get("spacing_mm"))
    return None


def _chat(members: Mapping[str, bytes], tile: Tile) -> None:
    names = sorted(name for name in members if name.partition(".")[2] in MEMBERS)
    for name in names[:PICTURES]:
        with _faults_noted(tile):
            tile.pictures.append(thumbnail(members[name], f"Image {name.partition('.')[0]} of {tile.key}"))
    facts: Mapping[str, Any] = {}
    with _faults_noted(tile):
        facts = json_object(_member(members, "json"), "source.unreadable")
        messages = facts.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise DataError("json: there is no list of messages")
        pairs = [(who, message.get(who)) for message in messages for who in ("user", "assistant")]
        spoken = [("system", facts.get("system")), *pairs]
        turns = [(who, shorten(text, TEXT)) for who, text in spoken if isinstance(text, str)]
        tile.turns = turns[:MESSAGES]
        if len(turns) > MESSAGES:
            tile.notes.append(counted(len(turns) - MESSAGES, "more message"))
    if len(names) > PICTURES:
        tile.notes.append(counted(len(names) - PICTURES, "more image"))
    if isinstance(ratings := facts.get("ratings"), dict):
        some = islice(ratings.items(), RATINGS)
        tile.notes += [f"{shorten(name, 40)} {_rating(value)}" for name, value in some]


SHOWN: Mapping[str, Callable[[Mapping[str, bytes], Tile], None]] = {
    "image_text": _image_text,
    "reinforced": _reinforced,
    "volume_report": _volume_report,
    "chat": _chat,
}
"""The function that fills a tile from a sample's members, by modality."""


def _rating(values: Any) -> str:
    """Return a rating's value per turn, such as `4, –, 5`."""
    listed = values if isinstance(values, list) else [values]
    return shorten(", ".join(NOTHING if value is None else str(value) for value in listed[:MESSAGES]), 40)


def _names(members: Mapping[str, bytes]) -> str:
    return legible(", ".join(sorted(members)) or "none", TEXT)


def _text(members: Mapping[str, bytes], tile: Tile, most: int) -> str:
    if "txt" not in members:
        tile.faults.append("there is no txt")
        return ""
    try:
        text = members["txt"].decode()
    except UnicodeDecodeError as error:
        tile.faults.append(f"txt is not UTF-8 at byte {error.start}")
        text = members["txt"].decode("utf-8", "replace")
    if is_blank(text):
        tile.faults.append("the caption is blank")
    return shorten(text, most)


def _member(members: Mapping[str, bytes], name: str) -> bytes:
    if name not in members:
        raise DataError(f"there is no {name}")
    return members[name]


@contextmanager
def _faults_noted(tile: Tile) -> Iterator[None]:
    """Note on the tile what the block cannot show, so that the rest of the sample is shown."""
    try:
        yield
    except NotShown as error:
        tile.notes.append(str(error))
    except DataError as error:
        tile.faults.append(str(error))
    except Reject as reject:
        tile.faults.append(reject.detail)
