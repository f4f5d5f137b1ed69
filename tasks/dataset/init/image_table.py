"""Tables of images and captions: how to read them, and whether the images are where the table says."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from tasks.core.stores import ABSENT, is_remote
from tasks.core.units import count
from tasks.dataset.init.evidence import Grade, Key, Reading, listed, shard_key, shown, splits_key
from tasks.dataset.init.inventory import IMAGE_SUFFIXES, Inventory, suffix_of
from tasks.dataset.init.profile import MOST_DISTINCT, Column, Profile
from tasks.dataset.init.roles import (
    KEYS,
    SPLIT_NAMES,
    caption_columns,
    image_column,
    label_column,
    split_names,
)
from tasks.dataset.init.table_sets import Tables, TableSet
from tasks.dataset.sources.image_folder import UNSTORABLE
from tasks.dataset.splits import FOLDERS

GROUPS = ("patient", "subject", "patient_id", "subject_id", "group", "group_id", "product_id", "user_id")


def readings(inventory: Inventory, tables: Tables) -> list[Reading]:
    found = (_reading(inventory, one, tables) for one in tables.sets)
    return [reading for reading in found if reading is not None]


def _reading(inventory: Inventory, table: TableSet, tables: Tables) -> Reading | None:
    profile = table.profile
    image = image_column(profile)
    if image is None:
        return None
    captions = caption_columns(profile, image)
    if not captions:
        return None
    where, warnings, grade = _where_images_are(inventory, profile, image)
    caption = captions[0]
    if caption.share(caption.spaced) < 0.5:
        warnings = [*warnings, f"{caption.name} holds single words rather than captions"]
        grade = min(grade, 1)
    if doubt := header_doubt(inventory, profile):
        warnings = [doubt, *warnings]
        grade = min(grade, 1)
    seen = [
        ("table", f"{table.described}; columns {listed(list(profile.columns), 8)}"),
        ("image", f"{shown(image.name)}: {where}"),
        ("caption", f"{shown(caption.name)}: {_quoted(caption, table.among)}{_others(captions)}"),
    ]
    label = label_column(profile, image, caption)
    if label is not None:
        values = f"{len(label.values)} values{table.among}, {listed(list(label.values))}"
        seen.append(("label", f"{shown(label.name)}: {values}"))
    source = [
        Key("kind", "table"),
        Key("path", table.path, table.described.partition(": ")[2]),
        Key("image", image.name, where),
        *_captions(captions, table.among),
        *_key(profile, image, caption),
    ]
    dataset = [*_filter(label), _image_rules(image), *_splits(table, image), shard_key(table.rows)]
    return Reading(
        "table",
        "a table of images and captions",
        "image_text",
        table.rows,
        grade,
        seen,
        [*warnings, *_split_files(table), *tables.warnings()],
        source,
        [key for key in dataset if key is not None],
        label=None if label is None else label.name,
    )


def header_doubt(inventory: Inventory, profile: Profile) -> str:
    """What to do about a table whose first row names no columns; "" where it does."""
    folder = posixpath.dirname(profile.file)
    for name in profile.columns if suffix_of(profile.file) in (".csv", ".tsv") else ():
        if is_remote(name) or (suffix_of(name) in IMAGE_SUFFIXES and _is_there(inventory, folder, name)):
            looks = f"the first row of {shown(profile.file)} looks like data, as it holds {shown(name)}"
            return f"{looks}: add a line before it that names the columns"
    return ""


def _where_images_are(inventory: Inventory, profile: Profile, image: Column) -> tuple[str, list[str], Grade]:
    if image.is_binary:
        return "the images themselves", [], 2
    if image.share(image.addresses) >= 0.5:
        return (
            "addresses of the web",
            ["the build fetches every image from its address, which may be gone"],
            1,
        )
    folder = posixpath.dirname(profile.file)
    named = [name for name in image.examples if not is_remote(name)]
    there = sum(_is_there(inventory, folder, name) for name in named)
    where = f"paths relative to the table's folder, {there} of {len(named)} looked at are there"
    if 2 * there >= len(named):
        return where, [], 2
    return where, [_fix_of_paths(inventory, folder, image, named)], 0


def _is_there(inventory: Inventory, folder: str, name: str) -> bool:
    path = name if name.startswith("/") else posixpath.normpath(posixpath.join(folder, name))
    return inventory.store.stat(path) != ABSENT


def _fix_of_paths(inventory: Inventory, folder: str, image: Column, named: Sequence[str]) -> str:
    """Where the images are instead."""
    first = named[0].lstrip("./")
    for file in inventory.of(IMAGE_SUFFIXES):
        if file.endswith(f"/{first}"):
            found = posixpath.relpath(file[: -len(first) - 1] or ".", folder or ".")
            return (
                f"{shown(image.name)} names {shown(named[0])}, which lies in {shown(found)}/: "
                "move the table there, or write that before each path"
            )
    return f"{shown(named[0])} is not there: paths in {shown(image.name)} start at the table's folder"


def _captions(columns: Sequence[Column], among: str) -> Iterable[Key]:
    yield Key("caption", columns[0].name, f"such as {_quoted(columns[0], among)}")
    for column in columns[1:3]:
        yield Key("caption", column.name, "would do as well", is_aside=True)


def _shares_images(image: Column) -> bool:
    """Whether several rows have one image, as with five captions each."""
    return image.repeats and not image.is_binary


def _key(profile: Profile, image: Column, caption: Column) -> Iterable[Key]:
    if _shares_images(image):
        yield Key("key", [image.name, caption.name], "several rows share an image")
        return
    column = profile.named(*KEYS)
    if column is None or column is image or not column.is_unique:
        return
    why = f"unique as far as was looked, such as {shown(next(iter(column.values)), 30)}"
    yield Key("key", column.name, why if image.is_binary else f"{why}; else its path", not image.is_binary)


def _filter(label: Column | None) -> Iterable[Key]:
    if label is not None:
        first = next(iter(label.values))
        yield Key("filter", {label.name: [first]}, "your own rules; what they leave out is no reject", True)


def _image_rules(image: Column) -> Key | None:
    formats = sorted(UNSTORABLE & {suffix_of(name) for name in image.values})
    if formats and not image.is_binary:
        told = listed([suffix[1:] for suffix in formats])
        return Key("image", {"encode": "jpg"}, f"shards hold jpg, png and webp, not {told}")
    return Key("image", {"max_side": 1024}, "scales larger images down, once", True)


def _splits(table: TableSet, image: Column) -> Iterable[Key]:
    """By the column that names splits where there is one, else by key; alternatives after it."""
    named = next((column for column in table.profile.columns.values() if split_names(column)), None)
    group = table.profile.named(*GROUPS)
    if named is None and _shares_images(image):
        yield splits_key(table.rows, image.name, "held out with all its captions")
    elif named is None:
        yield splits_key(table.rows)
    else:
        names = split_names(named)
        usable = "train" in names and not set(names) & set(FOLDERS)
        lacking = "" if "train" in names else "; none is called train"
        why = f"its values{table.among}: {listed(names)}{lacking}"
        if not usable:
            yield splits_key(table.rows)
        yield Key("splits", {"from": named.name}, why, not usable)
    if group is not None:
        why = f"keeps each {group.name} in one split; {_different(group, table.among)}"
        yield Key("splits", {"val": 0.05, "group_by": group.name}, why, True)


def _split_files(table: TableSet) -> list[str]:
    """Files named after splits, which only a column can be."""
    names = {re.split(r"[-_.]", posixpath.basename(file))[0].lower() for file in table.files}
    if not names <= SPLIT_NAMES or len(names) < 2:
        return []
    return [f"the tables are named {listed(sorted(names))}: splits draws anew; for one alone give its path"]


def _others(captions: Sequence[Column]) -> str:
    return f" (others: {listed([one.name for one in captions[1:]])})" if captions[1:] else ""


def _quoted(column: Column, among: str) -> str:
    values = [value for value in column.values if value.strip()]
    if len(column.values) <= 3:
        return ", ".join(f"“{shown(value, 40)}”" for value in values)
    return f"“{shown(values[0] if values else '', 48)}”, {_different(column, among)}"


def _different(column: Column, among: str) -> str:
    number = len(column.values)
    return f"{count(number)}{'+' * (number >= MOST_DISTINCT)} different{among}"
