"""Images as files: captions in a file beside each, or one folder a class; told from the names alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Sequence
from posixpath import splitext
from typing import Any

from tasks.core.stores import Unreachable
from tasks.core.units import count, counted, percent
from tasks.dataset.init.evidence import (
    LOOKED_AT,
    Grade,
    Key,
    Reading,
    listed,
    shard_key,
    shown,
    splits_key,
    spread,
)
from tasks.dataset.init.inventory import IMAGE_SUFFIXES, Inventory, suffix_of
from tasks.dataset.init.roles import CAPTIONS
from tasks.dataset.keys import stem
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.files import read_file
from tasks.dataset.sources.image_folder import UNSTORABLE

FEWEST = 0.1
"""Captions for a smaller share of the images are files of something else."""
LARGEST_JSON = 1 << 20
BY_CLASS = "images in one folder a class"
SPLIT_FOLDERS = {"train", "val", "valid", "validation", "test"}


def readings(inventory: Inventory) -> list[Reading]:
    images = inventory.of(IMAGE_SUFFIXES)
    if not images or not inventory.is_folder:
        return []
    found = [
        _beside(inventory, images, "txt"),
        _beside(inventory, images, "json"),
        _classes(inventory, images),
    ]
    return [reading for reading in found if reading is not None]


def without_captions(inventory: Inventory) -> str:
    """What to do about images that no caption was found for; "" where there are no images."""
    images = inventory.of(IMAGE_SUFFIXES)
    if not images:
        return ""
    if not inventory.is_folder:
        return "images by themselves, without what is beside them: give their folder"
    name = images[0].rpartition("/")[2]
    classes = {image.rpartition("/")[0].rpartition("/")[2] for image in images}
    is_class = len(classes) == 1 and not classes <= {"", *SPLIT_FOLDERS}
    by_class = (
        f"or, as one class is no choice, images of others into folders beside {shown(min(classes))}/"
        if is_class
        else "or the images into one folder a class"
    )
    return (
        f"no captions for {counted(len(images), 'image')}: put {shown(stem(name))}.txt beside {shown(name)}, "
        f"a table with columns file,caption into the folder, {by_class}"
    )


def _beside(inventory: Inventory, images: Sequence[str], kind: str) -> Reading | None:
    partners = {splitext(file)[0]: file for file in inventory.of([f".{kind}"])}
    paired = [image for image in images if splitext(image)[0] in partners]
    if len(paired) < FEWEST * len(images):
        return None
    share = f"{count(len(paired))} of {count(len(images))} images have a .{kind} beside"
    field, evidence, warnings = None, "", []
    looked_at = [partners[splitext(image)[0]] for image in spread(paired, LOOKED_AT)]
    texts, broken = _contents(inventory, looked_at)
    if broken:
        warnings.append(broken)
    if kind == "json":
        found = _field(texts)
        if found is None:
            return None
        field, evidence = found
    elif texts:
        evidence = f"“{shown(texts[0], 48)}”"
    if len(paired) < len(images):
        lacking = len(images) - len(paired)
        which = counted(lacking, "image has", "images have")
        warnings.append(f"{which} no .{kind} beside: rejected as caption.missing")
    covered = len(paired) / len(images)
    grade: Grade = 2 if covered >= 0.95 else 1 if covered >= 0.5 else 0
    captions = [Key("captions", kind, f"{share}, such as {evidence}")]
    if field is not None:
        captions.append(Key("field", field, "the caption's field; the others go into the sample's json"))
    seen = [("images", share), ("caption", f"{shown(field)}: {evidence}" if field else evidence)]
    return _reading(inventory, images, f"images with captions in .{kind}", grade, seen, warnings, captions)


def _classes(inventory: Inventory, images: Sequence[str]) -> Reading | None:
    classes = Counter(image.rpartition("/")[0].rpartition("/")[2] for image in images)
    names = sorted(classes)
    if len(names) < 2 or "" in classes or set(names) <= SPLIT_FOLDERS:
        return None
    warnings = [f"captions: folder would use the folder names {listed(names)} as what the images show"]
    seen = [
        ("images", f"{count(len(images))} in {count(len(names))} folders: {listed(names)}"),
        ("classes", f"{_span(classes.values())} images each"),
    ]
    captions = [
        Key("captions", "folder", f"the folder names {listed(names)} are the classes"),
        Key(
            "templates", ["a photo of a {}"], "each sample draws one by its key; write what fits your images"
        ),
    ]
    return _reading(inventory, images, BY_CLASS, 1, seen, warnings, captions)


def _span(numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def _reading(
    inventory: Inventory,
    images: Sequence[str],
    what: str,
    grade: Grade,
    seen: Sequence[tuple[str, str]],
    warnings: Sequence[str],
    captions: Sequence[Key],
) -> Reading:
    unstorable = [image for image in images if suffix_of(image) in UNSTORABLE]
    rules = Key("image", {"max_side": 1024}, "scales larger images down, once", True)
    if unstorable:
        share = percent(len(unstorable) / len(images))
        rules = Key("image", {"encode": "jpg"}, f"{share} are of a format that shards do not hold")
    source = [Key("kind", "image_folder"), Key("path", inventory.given, inventory.described), *captions]
    dataset = [rules, _splits(images), shard_key(len(images))]
    label = "label" if what == BY_CLASS else None
    return Reading(
        "image_folder", what, "image_text", len(images), grade, seen, warnings, source, dataset, label=label
    )


def _splits(images: Sequence[str]) -> Key:
    """By the first folder where its names are those of splits."""
    folders = {image.partition("/")[0] if "/" in image else "" for image in images}
    if "train" in folders and len(folders) > 1 and folders <= SPLIT_FOLDERS:
        return Key("splits", {"from": "folder"}, f"the first folder names it: {listed(sorted(folders))}")
    return splits_key(len(images))


def _contents(inventory: Inventory, files: Sequence[str]) -> tuple[list[str], str]:
    """The texts of a few files, and what is wrong with those that cannot be read."""
    texts, broken = [], []
    for file in files:
        try:
            texts.append(read_file(inventory.store, file, LARGEST_JSON).decode("utf-8-sig"))
        except Unreachable:
            raise
        except Reject as reject:
            broken.append(f"{shown(file)}: {reject.detail}")
        except UnicodeDecodeError:
            broken.append(f"{shown(file)}: not UTF-8")
    said = f"{len(broken)} of {len(files)} looked at cannot be read: {broken[0]}" if broken else ""
    return [text for text in texts if text.strip()], said


def _field(texts: Sequence[str]) -> tuple[str, str] | None:
    """The field that most likely is the caption, and an example."""
    scores: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for text in texts:
        for name, value in _fields(text).items():
            if isinstance(value, str) and value.strip() and "://" not in value:
                scores[name] += 2 * (name.lower() in CAPTIONS) + (" " in value.strip())
                examples.setdefault(name, value)
    best = max(sorted(scores), key=lambda name: scores[name], default=None)
    if best is None or scores[best] == 0:
        return None
    return best, f"“{shown(examples[best], 48)}”"


def _fields(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
