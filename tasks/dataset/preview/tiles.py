"""One sample as the page shows it: pictures, captions, turns, and whatever is wrong with it.

A sample that cannot be shown is a tile that says so. A new modality is a function here and a line in SHOWN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tasks.core.errors import DataError
from tasks.core.units import NOTHING, shorten
from tasks.dataset.formats.checks import is_blank
from tasks.dataset.formats.images import MEMBERS
from tasks.dataset.formats.volumes.geometry import Spacing
from tasks.dataset.preview.choice import spread
from tasks.dataset.preview.crops import crops_of, synthetic_captions
from tasks.dataset.preview.legible import legible
from tasks.dataset.preview.pictures import Box, NotShown, Picture, thumbnail
from tasks.dataset.preview.samples import Faulty, Sample, SampleReader
from tasks.dataset.preview.scans import open_scan, slices, stated_spacing

TEXT = 280
REPORT = 700
MESSAGES = 4
PICTURES = 3
CROPS = 6


T = TypeVar("T")


@dataclass(frozen=True)
class Fault:
    """What is wrong with a sample: the code that verify has for it, and words."""

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass
class Tile:
    """`turns` are (who, text); `more` are texts beside the caption; `faults` say what could not be shown."""

    key: str
    pictures: list[Picture] = field(default_factory=list)
    caption: str = ""
    more: list[str] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)
    """What verify has found in the sample."""
    shard: str = ""
    is_read: bool = True
    """Whether `key` is the sample's; else it is its place."""


def tile(reader: SampleReader, row: int, modality: str) -> Tile:
    """Sample `row` as a tile; a sample that cannot be read is a tile with its fault."""
    shard = reader.shard(row)
    try:
        sample = reader.read(row)
    except Faulty as error:
        why = Fault(error.code, str(error))
        return Tile(f"sample {row + 1:,}", faults=[why], shard=shard, is_read=False)
    return tile_of(sample, modality, shard)


def tile_of(sample: Sample, modality: str, shard: str) -> Tile:
    """A sample that was read."""
    shown = Tile(legible(sample.key, 80), shard=shard)
    SHOWN[modality](sample.members, shown)
    return shown


def _image_text(members: Mapping[str, bytes], shown: Tile) -> None:
    _add_picture(members, shown)
    shown.caption = _text(members, shown, TEXT)


def _reinforced(members: Mapping[str, bytes], shown: Tile) -> None:
    crops: list[Box] = _attempt(lambda: crops_of(_member(members, "paug.json")), shown, [])
    drawn = tuple(crops[index] for index in spread(len(crops), CROPS))
    _add_picture(members, shown, drawn)
    shown.caption = _text(members, shown, TEXT)
    texts: list[str] = _attempt(lambda: synthetic_captions(_member(members, "syn.json")), shown, [])
    shown.more = [shorten(text, TEXT // 2) for text in texts[:5]]
    if crops:
        shown.notes.append(
            f"{len(drawn)} of {len(crops)} crops" if len(crops) > CROPS else f"{len(crops)} crops"
        )


def _volume_report(members: Mapping[str, bytes], shown: Tile) -> None:
    facts: dict[str, Any] = _attempt(lambda: _object(members, "json"), shown, {})
    spacing = stated_spacing(facts)
    _attempt(partial(_add_slices, members, spacing, shown), shown, None)
    distances = " × ".join(f"{value:g}" for value in spacing) if spacing is not None else ""
    shown.notes.append(f"{distances} mm" if spacing else "no spacing is stated: voxels are shown as cubes")
    labels = facts.get("labels")
    if isinstance(labels, dict):
        present = [str(name) for name, value in labels.items() if value]
        shown.notes.append(shorten(f"labels: {', '.join(present) or 'none'} of {len(labels)}", TEXT))
    shown.caption = _text(members, shown, REPORT)


def _chat(members: Mapping[str, bytes], shown: Tile) -> None:
    names = sorted(name for name in members if name.partition(".")[2] in MEMBERS)
    for name in names[:PICTURES]:
        _attempt(partial(_add_image, members, name, shown), shown, None)
    facts: dict[str, Any] = _attempt(lambda: _object(members, "json"), shown, {})
    turns: list[tuple[str, str]] = _attempt(lambda: _turns(facts), shown, [])
    shown.turns = [(who, shorten(text, TEXT)) for who, text in turns[:MESSAGES]]
    if len(turns) > MESSAGES:
        shown.notes.append(f"{len(turns) - MESSAGES:,} more messages")
    if len(names) > PICTURES:
        shown.notes.append(f"{len(names) - PICTURES:,} more images")
    ratings = facts.get("ratings")
    if isinstance(ratings, dict):
        shown.notes += [f"{shorten(name, 40)} {_rating(value)}" for name, value in list(ratings.items())[:6]]


SHOWN: Mapping[str, Callable[[Mapping[str, bytes], Tile], None]] = {
    "image_text": _image_text,
    "reinforced": _reinforced,
    "volume_report": _volume_report,
    "chat": _chat,
}


def _rating(values: Any) -> str:
    """Of each turn, as `4, –, 5`."""
    listed = values if isinstance(values, list) else [values]
    return shorten(", ".join(NOTHING if value is None else str(value) for value in listed[:MESSAGES]), 40)


def _turns(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """`{"messages": [{"user": …, "assistant": …}]}` as (who, text), in order."""
    messages = facts.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise DataError("json: there is no list of messages")
    return [
        (who, message[who])
        for message in messages
        for who in ("user", "assistant")
        if isinstance(message.get(who), str)
    ]


def _add_picture(members: Mapping[str, bytes], shown: Tile, crops: Sequence[Box] = ()) -> None:
    name = next((name for name in MEMBERS if name in members), None)
    if name is None:
        there = legible(", ".join(sorted(members)) or "none", TEXT)
        shown.faults.append(Fault("sample.missing_member", f"there is no image among {there}"))
        return
    _attempt(partial(_add_image, members, name, shown, tuple(crops)), shown, None)
    shown.notes += [f"{picture.width} × {picture.height}" for picture in shown.pictures]


def _add_image(members: Mapping[str, bytes], name: str, shown: Tile, crops: tuple[Box, ...] = ()) -> None:
    alt = f"Image {name.partition('.')[0]} of {shown.key}" if "." in name else f"Image of {shown.key}"
    shown.pictures.append(thumbnail(members[name], alt, crops))


def _add_slices(members: Mapping[str, bytes], spacing: Spacing | None, shown: Tile) -> None:
    scan = open_scan(members)
    shown.notes.append(" × ".join(map(str, scan.shape)) + " voxels")
    shown.pictures = slices(scan, spacing, f"Slice of {shown.key}")


def _text(members: Mapping[str, bytes], shown: Tile, most: int) -> str:
    if "txt" not in members:
        shown.faults.append(Fault("sample.missing_member", "there is no txt"))
        return ""
    try:
        text = members["txt"].decode()
    except UnicodeDecodeError as error:
        shown.faults.append(Fault("member.undecodable", f"txt is not UTF-8 at byte {error.start}"))
        text = members["txt"].decode("utf-8", "replace")
    if is_blank(text):
        shown.faults.append(Fault("member.empty", "the caption is blank"))
    return shorten(text, most)


def _member(members: Mapping[str, bytes], name: str) -> bytes:
    if name not in members:
        raise Faulty("sample.missing_member", f"there is no {name}")
    return members[name]


def _json(members: Mapping[str, bytes], name: str) -> Any:
    try:
        return json.loads(_member(members, name))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} cannot be read: {str(error)[:120]}") from None


def _object(members: Mapping[str, bytes], name: str) -> dict[str, Any]:
    value = _json(members, name)
    if not isinstance(value, dict):
        raise DataError(f"{name} holds no JSON object")
    return value


def _attempt(read: Callable[[], T], shown: Tile, otherwise: T) -> T:
    """What `read` gives; when it cannot, why goes on the tile."""
    try:
        return read()
    except NotShown as error:
        shown.notes.append(str(error))
    except Faulty as error:
        shown.faults.append(Fault(error.code, str(error)))
    except DataError as error:
        shown.faults.append(Fault("member.undecodable", str(error)))
    return otherwise
