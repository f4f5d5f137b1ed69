"""Images with captions: in a table, in a file beside each image, or in the names of the folders.

A table or a file beside an image says what it shows; that a folder's name does is a guess, which is made only
where no table may say better.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tasks.core.stores import ABSENT, is_remote
from tasks.core.units import count, counted
from tasks.dataset.init.columns import (
    KEY_NAMES,
    MOST_DISTINCT,
    SPLIT_NAMES,
    ColumnCounts,
    SurveyedTable,
    SurveyedTables,
    add_row,
    caption_columns,
    class_column,
    image_column,
    label_column,
)
from tasks.dataset.init.evidence import (
    LOOKED_AT,
    Grade,
    Key,
    Reading,
    enumerate_names,
    look_at_each,
    shard_key,
    shown,
    splits_key,
    spread,
)
from tasks.dataset.init.inventory import IMAGES, Inventory, suffix_of
from tasks.dataset.keys import stem
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.fields import RECODE, object_of
from tasks.dataset.sources.image_folder import UNREAD, UNSTORABLE
from tasks.dataset.sources.raw_files import read_file
from tasks.dataset.splits import FOLDERS

GROUP_NAMES = ("patient", "subject", "patient_id", "subject_id", "group", "group_id", "product_id", "user_id")
SPLIT_FOLDERS = {"train", "val", "valid", "validation", "test"}
FEWEST = 0.1
"""Captions for a smaller share of the images are files of something else."""
LARGEST_TEXT = 1 << 20
USUAL_BYTES = 100_000
"""Of a photo that lies elsewhere."""


def caption_readings(inventory: Inventory, tables: SurveyedTables) -> list[Reading]:
    found = [one for table in tables.joined if (one := _of_table(inventory, table)) is not None]
    images = inventory.of(IMAGES)
    if images and inventory.is_folder:
        beside = (_beside(inventory, images, kind) for kind in ("txt", "json"))
        found += [one for one in beside if one is not None]
        found += _by_folder(inventory, images, tables, found)
    return found


def without_captions(inventory: Inventory) -> str:
    """What to do about images that no caption was found for; "" where there are no images."""
    images = inventory.of(IMAGES)
    if not images:
        unread = inventory.of(UNREAD)
        kinds = enumerate_names(sorted({suffix_of(file) for file in unread}))
        return (
            f"{counted(len(unread), 'image')} in {kinds}, which is not read: convert to jpg" if unread else ""
        )
    if not inventory.is_folder:
        return "images by themselves, without what is beside them: give their folder"
    name = images[0].rpartition("/")[2]
    by_class = "or sort the images into one folder per class"
    folders = {posixpath.basename(posixpath.dirname(image)) for image in images}
    if len(folders) == 1 and not folders <= {"", *SPLIT_FOLDERS}:
        others = f"images of others into folders beside {shown(min(folders))}/"
        by_class = f"or, as a single class leaves no choice, {others}"
    return (
        f"no captions for {counted(len(images), 'image')}: put {shown(stem(name))}.txt beside {shown(name)}, "
        f"a table with columns file,caption into the folder, {by_class}"
    )


def unused_table(inventory: Inventory, table: SurveyedTable) -> str:
    """Why a table is no source."""
    if doubt := _header_doubt(inventory, table):
        return doubt
    lacking = "has no column of images (paths or bytes) with one of captions, or of conversations"
    return f"{shown(table.file)} {lacking}; its columns: {enumerate_names(list(table.columns), 12)}"


def _of_table(inventory: Inventory, table: SurveyedTable) -> Reading | None:
    image = image_column(table)
    captions = caption_columns(table.columns, image) if image is not None else []
    classes = class_column(table, image) if image is not None and not captions else None
    if image is None or not (captions or classes):
        return None
    if classes is not None:
        return _of_classes(inventory, table, image, classes)
    caption = captions[0]
    where, fix, grade = _where_images_are(inventory, table, image)
    words = f"{shown(caption.name)} holds single words rather than captions"
    doubts = [
        _header_doubt(inventory, table),
        _encoding_doubt(table),
        fix,
        words if caption.share("spaced") < 0.5 else "",
    ]
    warnings = list(filter(None, doubts))
    others = f" (others: {enumerate_names([one.name for one in captions[1:]])})" if captions[1:] else ""
    seen = [
        ("table", f"{table.name}: {table.size}; columns {enumerate_names(list(table.columns), 8)}"),
        ("image", f"{shown(image.name)}: {where}"),
        ("caption", f"{shown(caption.name)}: {_quoted(caption, table.among)}{others}"),
    ]
    label = label_column(table, image, caption)
    if label is not None:
        values = f"{len(label.values)} values{table.among}, {enumerate_names(list(label.values))}"
        seen.append(("label", f"{shown(label.name)}: {values}"))
    source = [
        *_source(table, image, where),
        Key("caption", caption.name, f"such as {_quoted(caption, table.among)}"),
        *(Key("caption", one.name, "would do as well", is_alternative=True) for one in captions[1:3]),
        *_key(table, image, caption),
    ]
    grade = min(grade, 1) if warnings else grade
    what, name = "a table of images and captions", None if label is None else label.name
    dataset = _dataset(inventory, table, image)
    return Reading(
        "table", what, "image_text", table.rows, grade, seen, warnings, source, dataset, label=name
    )


def _of_classes(
    inventory: Inventory, table: SurveyedTable, image: ColumnCounts, classes: ColumnCounts
) -> Reading:
    """A table without captions whose label names the classes, as Hugging Face's `ClassLabel` does."""
    where, fix, grade = _where_images_are(inventory, table, image)
    warnings = [*filter(None, [_header_doubt(inventory, table), fix])]
    names = f"{len(classes.values)} classes{table.among}, {enumerate_names(list(classes.values))}"
    if classes.is_numeric:
        numbers = f"{shown(classes.name)} holds numbers ({enumerate_names(list(classes.values))})"
        warnings.append(f"{numbers}, which mean nothing to a model of texts: put the classes' names there")
    seen = [
        ("table", f"{table.name}: {table.size}; columns {enumerate_names(list(table.columns), 8)}"),
        ("image", f"{shown(image.name)}: {where}"),
        ("label", f"{shown(classes.name)}: {names}"),
    ]
    source = [
        *_source(table, image, where),
        Key("caption", classes.name, f"no column holds captions; {names}"),
        Key(
            "templates",
            ["a photo of a {}"],
            "the captions, with {} for the class; write what fits your images",
        ),
    ]
    grade = min(grade, 1) if warnings else grade
    return Reading(
        "table",
        "a table of images and classes",
        "image_text",
        table.rows,
        grade,
        seen,
        warnings,
        source,
        _dataset(inventory, table, image),
        label=classes.name,
    )


def _source(table: SurveyedTable, image: ColumnCounts, where: str) -> Iterator[Key]:
    yield Key("kind", "table")
    yield Key("path", table.path, table.size)
    if pattern := _split_pattern(table):
        yield Key("fields", {"split": pattern}, "the tables are named after splits")
    yield Key("image", image.name, where)


def _dataset(inventory: Inventory, table: SurveyedTable, image: ColumnCounts) -> list[Key]:
    rules = _image_rules({suffix_of(name) for name in image.values} if not image.is_binary else ())
    each = _bytes_of_a_sample(inventory, table, image)
    return [rules, *_splits(table, image), shard_key(table.rows, each, is_kept=rules.is_alternative)]


def _bytes_of_a_sample(inventory: Inventory, table: SurveyedTable, image: ColumnCounts) -> float:
    if image.is_binary:
        return sum(map(inventory.size, table.files)) / max(table.rows, 1)
    return inventory.mean_size(inventory.of(IMAGES)) or USUAL_BYTES


def _header_doubt(inventory: Inventory, table: SurveyedTable) -> str:
    """What to do about a table whose first row names no columns; "" where it does."""
    for name in table.columns if suffix_of(table.file) in (".csv", ".tsv") else ():
        is_image = suffix_of(name) in IMAGES and _is_there(inventory, table, name)
        if is_remote(name) or is_image:
            looks = f"the first row of {shown(table.file)} looks like data, as it holds {shown(name)}"
            return f"{looks}: add a line before it that names the columns"
    return ""


def _encoding_doubt(table: SurveyedTable) -> str:
    """What to do about a table with cells that are not UTF-8; "" where there is none."""
    cells = (cell for column in table.columns.values() for cell in column.values)
    odd = next((cell for cell in cells if any("\udc80" <= char <= "\udcff" for char in cell)), None)
    return f"{table.name} is not UTF-8, as in “{shown(odd, 40)}”{RECODE}" if odd is not None else ""


def _where_images_are(
    inventory: Inventory, table: SurveyedTable, image: ColumnCounts
) -> tuple[str, str, Grade]:
    """Where the images are, what to mend, and how well they can be read."""
    if image.is_binary:
        return "the images themselves", "", 2
    if image.share("address") >= 0.5:
        return "web addresses", "the build fetches every image from its address, which may be gone", 1
    named = [name for name in image.examples if not is_remote(name)]
    there = sum(_is_there(inventory, table, name) for name in named)
    where = f"paths relative to the table's folder, {there} of {len(named)} looked at are there"
    if 2 * there >= len(named):
        return where, "", 2
    return where, _misplaced(inventory, table, image, named[0]), 0


def _is_there(inventory: Inventory, table: SurveyedTable, name: str) -> bool:
    """Whether an image that a table names is there."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(table.file), name))
    return inventory.store.stat(path) != ABSENT


def _misplaced(inventory: Inventory, table: SurveyedTable, image: ColumnCounts, named: str) -> str:
    """Where the images are instead."""
    if "\\" in named:
        return f"{shown(image.name)} holds paths with backslashes ({shown(named)}): write them with /"
    end = "/" + named.lstrip("./")
    folder = next((file.removesuffix(end) for file in inventory.of(IMAGES) if file.endswith(end)), None)
    if folder is None:
        return f"{shown(named)} is not there: paths in {shown(image.name)} start at the table's folder"
    found = posixpath.relpath(folder or ".", posixpath.dirname(table.file) or ".")
    where = f"{shown(image.name)} names {shown(named)}, which lies in {shown(found)}/"
    return f"{where}: move the table there, or write that before each path"


def _shares_images(image: ColumnCounts) -> bool:
    """Whether several rows have one image, as with five captions each."""
    return image.repeats and not image.is_binary


def _key(table: SurveyedTable, image: ColumnCounts, caption: ColumnCounts) -> Iterator[Key]:
    if _shares_images(image):
        yield Key("key", [image.name, caption.name], "several rows share an image")
        return
    column = table.named(*KEY_NAMES)
    if column is not None and column is not image and column.is_unique:
        why = f"unique in the rows looked at, such as {shown(next(iter(column.values)), 30)}"
        is_needed = image.is_binary
        yield Key("key", column.name, why if is_needed else f"{why}; else its path", not is_needed)


def _image_rules(suffixes: Iterable[str]) -> Key:
    unstorable = sorted(suffix[1:] for suffix in UNSTORABLE & set(suffixes))
    if unstorable:
        why = (
            f"for {enumerate_names(unstorable)}, which shards cannot hold; jpg, png and webp stay as they are"
        )
        return Key("image", {"encode": "jpg"}, why)
    return Key("image", {"max_side": 1024}, "scales larger images down, once", is_alternative=True)


def _splits(table: SurveyedTable, image: ColumnCounts) -> Iterator[Key]:
    """By the column or the files that name splits, else by key; alternatives after it."""
    if _split_pattern(table):
        yield Key("splits", {"from": "split"}, "as the tables' names say: what is held out stays so")
        return
    named = next((one for one in table.columns.values() if one.split_names), None)
    names = named.split_names if named is not None else []
    is_usable = "train" in names and not set(names) & set(FOLDERS)
    if named is None and _shares_images(image):
        yield splits_key(table.rows, image.name, "held out with all its captions")
    elif not is_usable:
        yield splits_key(table.rows)
    if named is not None:
        lacking = "" if "train" in names else "; none is called train"
        why = f"its values{table.among}: {enumerate_names(names)}{lacking}"
        yield Key("splits", {"from": named.name}, why, is_alternative=not is_usable)
    group = table.named(*GROUP_NAMES)
    if group is not None:
        why = f"keeps each {group.name} in one split; {_different(group, table.among)}"
        yield Key("splits", {"val": 0.05, "group_by": group.name}, why, is_alternative=True)


def _split_pattern(table: SurveyedTable) -> str:
    """The expression that finds the split in the names of tables such as `train-00000-of-00002.parquet`; ""
    where they are not named after splits, `train` among them, or hold a column of that name."""
    names = {re.split(r"[-_.]", posixpath.basename(file))[0] for file in table.files}
    is_named = "train" in names and len(names) > 1 and {name.lower() for name in names} <= SPLIT_NAMES
    return f"(?:^|/)({'|'.join(sorted(names))})[-_.]" if is_named and "split" not in table.columns else ""


def _quoted(column: ColumnCounts, among: str) -> str:
    values = [value for value in column.values if value.strip()]
    if len(column.values) <= 3:
        return ", ".join(f"“{shown(value, 40)}”" for value in values)
    return f"“{shown(values[0] if values else '', 48)}”, {_different(column, among)}"


def _different(column: ColumnCounts, among: str) -> str:
    number = len(column.values)
    return f"{count(number)}{'+' * (number >= MOST_DISTINCT)} different{among}"


def _beside(inventory: Inventory, images: Sequence[str], kind: str) -> Reading | None:
    """Captions in a file of the image's name."""
    partners = {posixpath.splitext(file)[0]: file for file in inventory.of([f".{kind}"])}
    paired = [image for image in images if posixpath.splitext(image)[0] in partners]
    if len(paired) < FEWEST * len(images):
        return None
    looked_at = [partners[posixpath.splitext(image)[0]] for image in spread(paired, LOOKED_AT)]
    contents, warnings = look_at_each(looked_at, partial(_fields, inventory, kind))
    columns: dict[str, ColumnCounts] = {}
    for _, fields in contents:
        add_row(columns, fields)
    captions = caption_columns(columns) if kind == "json" else list(columns.values())
    if kind == "json" and not captions:
        return None
    share = f"{count(len(paired))} of {count(len(images))} images have a .{kind} beside"
    example = f"“{shown(next(iter(captions[0].values)), 48)}”" if captions else "none could be read"
    covered = len(paired) / len(images)
    grade: Grade = 2 if covered >= 0.95 else 1 if covered >= 0.5 else 0
    keys = [Key("captions", kind, f"{share}, such as {example}")]
    if kind == "json":
        why = "the caption's field; the others go into the sample's json"
        keys.append(Key("field", captions[0].name, why))
        example = f"{shown(captions[0].name)}: {example}"
    seen = [("images", share), ("caption", example)]
    return _of_files(inventory, images, f"images with captions in .{kind}", grade, seen, warnings, keys)


def _by_folder(
    inventory: Inventory, images: Sequence[str], tables: SurveyedTables, others: Sequence[Reading]
) -> Iterator[Reading]:
    """The folders' names as captions, which is a guess."""
    folders = Counter(posixpath.basename(posixpath.dirname(image)) for image in images)
    names = sorted(folders)
    if len(names) < 2 or "" in folders or set(names) <= SPLIT_FOLDERS:
        return
    warnings = [f"the captions are a guess, made of the folders' names: {enumerate_names(names)}"]
    used = {one.path for one in others}
    warnings += [one.warnings[0] for one in others if one.kind == "table" and one.grade == 0]
    warnings += [f"not used: {unused_table(inventory, one)}" for one in tables.joined if one.path not in used]
    sizes = sorted(folders.values())
    each = count(sizes[0]) if sizes[0] == sizes[-1] else f"{count(sizes[0])} to {count(sizes[-1])}"
    seen = [
        ("images", f"{count(len(images))} in {count(len(names))} folders: {enumerate_names(names)}"),
        ("classes", f"{each} images each"),
    ]
    why = "each sample draws one by its key; write what fits your images"
    captions = [
        Key("captions", "folder", f"the folders' names {enumerate_names(names)} are the classes"),
        Key("templates", ["a photo of a {}"], why),
    ]
    reading = _of_files(inventory, images, "images in one folder per class", 1, seen, warnings, captions)
    yield replace(reading, is_guess=True, label="label")


def _of_files(
    inventory: Inventory,
    images: Sequence[str],
    what: str,
    grade: Grade,
    seen: Sequence[tuple[str, str]],
    warnings: Sequence[str],
    captions: Sequence[Key],
) -> Reading:
    source = [Key("kind", "image_folder"), Key("path", inventory.given, inventory.described), *captions]
    folders = {image.partition("/")[0] if "/" in image else "" for image in images}
    splits = splits_key(len(images))
    if "train" in folders and len(folders) > 1 and folders <= SPLIT_FOLDERS:
        splits = Key(
            "splits", {"from": "folder"}, f"the first folder names it: {enumerate_names(sorted(folders))}"
        )
    rules = _image_rules(map(suffix_of, images))
    shard = shard_key(len(images), inventory.mean_size(images), is_kept=rules.is_alternative)
    dataset = [rules, splits, shard]
    return Reading("image_folder", what, "image_text", len(images), grade, seen, warnings, source, dataset)


def _fields(inventory: Inventory, kind: str, file: str) -> Mapping[str, Any]:
    """The fields of a file of captions; those of a .txt are its text alone."""
    content = read_file(inventory.store, file, LARGEST_TEXT)
    if kind == "json":
        return object_of(content)
    try:
        return {"text": content.decode("utf-8-sig").strip()}
    except UnicodeDecodeError:
        raise Reject("caption.encoding", "not UTF-8") from None
