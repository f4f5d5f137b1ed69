"""Images with captions: in a table, in a file beside each image, or in the names of the folders.

A table or a file beside an image states what it shows. That a folder's name does is a guess, which is made
only where no table may give better captions.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tasks.core.stores import is_remote
from tasks.core.units import count, counted
from tasks.dataset.formats.images import GET_HEIC, can_read_heic
from tasks.dataset.init.column_counts import MOST_DISTINCT, SPLIT_NAMES, ColumnCounts, add_row
from tasks.dataset.init.columns import (
    KEY_NAMES,
    SurveyedTable,
    SurveyedTables,
    caption_columns,
    image_column,
    label_column,
    path_columns,
)
from tasks.dataset.init.evidence import (
    LOOKED_AT,
    ConfigKey,
    Grade,
    Reading,
    enumerate_names,
    observe,
    propose_shards,
    propose_splits,
    shown,
    spread,
)
from tasks.dataset.init.image_places import ImagePlace, is_image_there, place_of_images
from tasks.dataset.init.inventory import IMAGES, Inventory, suffix_of
from tasks.dataset.keys import stem
from tasks.dataset.sources.fields import object_of
from tasks.dataset.sources.image_folder import HEIC, UNREAD, UNSTORABLE
from tasks.dataset.sources.raw_files import read_file
from tasks.dataset.splits import FOLDERS
from tasks.dataset.version.layout import CAPTIONS

GROUP_NAMES = ("patient", "subject", "patient_id", "subject_id", "group", "group_id", "product_id", "user_id")
_MONTH = (
    r"(?:0?[1-9]|1[0-2]|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sep(?:tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_DAY = r"(?:[-_. ]?(?:0[1-9]|[12]\d|3[01]))"
DATED = re.compile(
    rf"(?:^|/)((?:19|20)\d\d(?:[-_./ ]?{_MONTH}{_DAY}?(?![a-z0-9])[^/]*(?:/[^/]*\d[^/]*)?)?)$", re.IGNORECASE
)
"""A folder that is named by a date, as cameras and photo libraries do: `2019`, `2019/05`, `2019-05-01
Rome`."""
SPLIT_FOLDERS = {"train", "val", "valid", "validation", "test"}
FEWEST = 0.1
"""Captions for a smaller share of the images are files of something else."""
LARGEST_TEXT = 1 << 20
USUAL_BYTES = 100_000
"""Bytes assumed for a photo that lies elsewhere."""


def caption_readings(inventory: Inventory, tables: SurveyedTables) -> list[Reading]:
    found = [one for table in tables.joined if (one := _of_table(inventory, table)) is not None]
    images = inventory.of(IMAGES)
    if images and inventory.is_folder:
        beside = (_beside(inventory, images, kind) for kind in ("txt", "json"))
        found += [one for one in beside if one is not None]
        found += _by_folder(inventory, images, tables, found)
    return found


def without_captions(inventory: Inventory) -> str:
    """Return what to do about images without captions; "" where there are no images."""
    images = inventory.of(IMAGES)
    if not images:
        unread = inventory.of(UNREAD)
        kinds = enumerate_names(sorted({suffix_of(file) for file in unread}))
        images_there = counted(len(unread), "image")
        return f"{images_there} in {kinds}, which is not read: convert to jpg" if unread else ""
    if not inventory.is_folder:
        return "images by themselves, without what is beside them: give their folder"
    name = images[0].rpartition("/")[2]
    by_class = "or sort the images into one folder per class"
    folders = {posixpath.basename(posixpath.dirname(image)) for image in images}
    if date := date_folder(images):
        by_class = f"{by_class}: folders named by dates ({shown(date)}) name no classes"
    elif len(folders) == 1 and not folders <= {"", *SPLIT_FOLDERS}:
        others = f"images of others into folders beside {shown(min(folders))}/"
        by_class = f"or, as a single class leaves no choice, {others}"
    return (
        f"no captions for {counted(len(images), 'image')}: put {shown(stem(name))}.txt beside {shown(name)}, "
        f"a table with columns file,caption into the folder, {by_class}"
    )


def unread_heic(inventory: Inventory) -> Iterator[str]:
    """Yield what to install where there are HEIC images that this installation does not read."""
    found = inventory.of(HEIC)
    if found and not can_read_heic():
        yield f"{counted(len(found), 'image')} in {suffix_of(found[0])} will be rejected: {GET_HEIC}"


def unused_table(inventory: Inventory, table: SurveyedTable) -> str:
    """Return why a table is no source."""
    doubt, image = _header_doubt(inventory, table), image_column(table)
    if not doubt and image is not None and caption_columns(table.columns, image):
        place = _image_and_place(inventory, table, image)[1]
        doubt = f"{shown(table.file)}: {place.problem}" if place.is_nowhere else ""
    elif not doubt and image is not None and label_column(table, image, None) is not None:
        several = f"{shown(table.file)} gives an image several classes"
        doubt = (
            f"{several}: give the table with captions, or one with a class for each" if image.repeats else ""
        )
    lacking = "has no column of images (paths or bytes) with one of captions, or of conversations"
    columns = enumerate_names(list(table.columns), 12)
    return doubt or f"{shown(table.file)} {lacking}; its columns: {columns}"


def _of_table(inventory: Inventory, table: SurveyedTable) -> Reading | None:
    """Read a table of images with captions, or with class names, as from Hugging Face's `ClassLabel`."""
    image = image_column(table)
    if image is None:
        return None
    captions = caption_columns(table.columns, image)
    label = label_column(table, image, captions[0] if captions else None)
    if not captions and (label is None or _shares_images(image)):
        return None
    (image, place), doubt = _image_and_place(inventory, table, image), _header_doubt(inventory, table)
    if place.is_nowhere and not doubt:
        return None
    what, captioned, reservation = _caption_keys(table, image, captions, label)
    split_pattern = _split_pattern(table)
    source = [
        ConfigKey("kind", "table"),
        ConfigKey("path", table.path, table.described),
        *_text_form(table, captions[0] if captions else label),
        ConfigKey("fields", {"split": split_pattern}, "the tables are named after splits"),
        ConfigKey("image", image.name, place.evidence),
        ConfigKey("root", place.root, place.why),
        *captioned,
    ]
    labelled = None
    if label is not None:
        values = f"{len(label.values)} values{table.among}, {enumerate_names(list(label.values))}"
        labelled = ConfigKey("label", label.name, values)
    warnings = list(filter(None, [doubt, place.problem, reservation]))
    rules = _image_rules({suffix_of(name) for name in image.values} if not image.is_binary else ())
    each = inventory.mean_size(inventory.of(IMAGES)) or USUAL_BYTES
    if image.is_binary:
        each = sum(map(inventory.size, table.files)) / max(table.rows, 1)
    is_joined = any(one.key == "captions" for one in captioned)
    samples = table.rows - round(table.rows * image.share("again")) if is_joined else table.rows
    shards = propose_shards(samples, each, is_kept=rules.is_alternative and not place.is_fetched)
    dataset = [rules, *_splits(table, image, samples, is_named=bool(split_pattern)), shards]
    source = [one for one in source if one.value not in (None, {"split": ""})]
    grade = min(place.grade, 1) if warnings else place.grade
    reading = Reading("table", what, "image_text", samples, grade, source, dataset, warnings)
    return replace(reading, label=labelled, reject_budget=place.reject_budget)


def _image_and_place(
    inventory: Inventory, table: SurveyedTable, image: ColumnCounts
) -> tuple[ColumnCounts, ImagePlace]:
    """Return the column of images, or the next one with paths if its images are nowhere, and their place."""
    place = place_of_images(inventory, table, image)
    for other in path_columns(table) if place.is_nowhere else ():
        found = place_of_images(inventory, table, other)
        if not found.is_nowhere:
            return other, found
    return image, place


def _caption_keys(
    table: SurveyedTable, image: ColumnCounts, captions: Sequence[ColumnCounts], label: ColumnCounts | None
) -> tuple[str, list[ConfigKey], str]:
    """Return what the table is, the keys of its captions, and a reservation about them."""
    if captions:
        first, *others = captions
        source = [ConfigKey("caption", first.name, _quoted(first, table.among))]
        source += [ConfigKey("caption", one.name, "would do as well", True) for one in others[:2]]
        is_short = first.share("spaced") < 0.5
        reservation = f"{shown(first.name)} holds single words rather than captions" if is_short else ""
        return "a table of images and captions", [*source, *_key(table, image, first)], reservation
    assert label is not None
    why = "the captions, with {} for the class; write what fits your images"
    source = [
        ConfigKey("caption", label.name, "no column holds captions, so the class will do"),
        ConfigKey("templates", ["a photo of a {}"], why),
    ]
    numbers = f"{shown(label.name)} holds numbers ({enumerate_names(list(label.values))})"
    fix = "which mean nothing to a model of texts: put the classes' names there"
    return "a table of images and classes", source, f"{numbers}, {fix}" if label.is_numeric else ""


def _text_form(table: SurveyedTable, shows: ColumnCounts | None) -> Iterator[ConfigKey]:
    """Yield the delimiter and the encoding where they are not the usual ones, with a text as it is read."""
    if table.delimiter:
        yield ConfigKey("delimiter", table.delimiter, f"between the cells of {shown(table.file)}")
    if table.encoding is not None:
        values = [value for value in (shows.values if shows is not None else ()) if not value.isascii()]
        texts = ", ".join(f"“{shown(value, 48)}”" for value in values[:2])
        yield ConfigKey("encoding", table.encoding, f"not UTF-8; so it reads {texts or 'other columns'}")


def _header_doubt(inventory: Inventory, table: SurveyedTable) -> str:
    """Return what to do about a table whose first row names no columns; "" where it does."""
    for name in table.columns if suffix_of(table.file) in (".csv", ".tsv", ".txt") else ():
        is_image = suffix_of(name) in IMAGES and is_image_there(inventory, table, name)
        if is_remote(name) or is_image:
            looks = f"the first row of {shown(table.file)} looks like data, as it holds {shown(name)}"
            return f"{looks}: add a line before it that names the columns"
    return ""


def _shares_images(image: ColumnCounts) -> bool:
    """Whether several rows have one image, as with five captions each."""
    return image.repeats and not image.is_binary


def _key(table: SurveyedTable, image: ColumnCounts, caption: ColumnCounts) -> Iterator[ConfigKey]:
    if caption.holds_texts:
        yield ConfigKey("captions", "all", "each cell is a list of texts; the first one becomes the txt")
    elif _shares_images(image) and (CAPTIONS not in table.columns or caption.name == CAPTIONS):
        yield ConfigKey(
            "captions", "all", "several rows share an image, which is stored once, with all of theirs"
        )
        return
    elif _shares_images(image):
        yield ConfigKey("key", [image.name, caption.name], "several rows share an image")
        return
    column = table.named(*KEY_NAMES)
    if column is not None and column is not image and column.is_unique:
        why = f"unique in the rows looked at, such as {shown(next(iter(column.values)), 30)}"
        is_needed = image.is_binary
        yield ConfigKey("key", column.name, why if is_needed else f"{why}; else its path", not is_needed)


def _image_rules(suffixes: Iterable[str]) -> ConfigKey:
    unstorable = enumerate_names(sorted(suffix[1:] for suffix in UNSTORABLE & set(suffixes)))
    if unstorable:
        why = f"for {unstorable}, which shards cannot hold; jpg, png and webp stay as they are"
        return ConfigKey("image", {"encode": "jpg"}, why)
    return ConfigKey("image", {"max_side": 1024}, "scales larger images down, once", is_alternative=True)


def _splits(table: SurveyedTable, image: ColumnCounts, samples: int, is_named: bool) -> Iterator[ConfigKey]:
    """Split by the column or the files that name splits, else by key; alternatives come after it."""
    if is_named:
        yield ConfigKey("splits", {"from": "split"}, "as the tables are named: what is held out stays so")
        return
    named = next((one for one in table.columns.values() if one.split_names), None)
    names = named.split_names if named is not None else []
    is_usable = "train" in names and not set(names) & set(FOLDERS)
    if named is None and _shares_images(image) and samples == table.rows:
        yield propose_splits(samples, image.name, "held out with all its captions")
    elif not is_usable:
        yield propose_splits(samples)
    if named is not None:
        lacking = "" if "train" in names else "; none is called train"
        why = f"its values{table.among}: {enumerate_names(names)}{lacking}"
        yield ConfigKey("splits", {"from": named.name}, why, is_alternative=not is_usable)
    group = table.named(*GROUP_NAMES)
    if group is not None:
        why = f"keeps each {group.name} in one split; {_different(group, table.among)}"
        yield ConfigKey("splits", {"val": 0.05, "group_by": group.name}, why, is_alternative=True)


def _split_pattern(table: SurveyedTable) -> str:
    """Return the expression that finds the split in names of tables such as `train-00000-of-00002.parquet`,
    `train/data-00000.arrow` or `captions_train2017.json`; "" where they are not named after splits, `train`
    among them, or hold a column of that name."""
    if "split" in table.columns:
        return ""
    files = [posixpath.basename(file) for file in table.files]
    names = {re.split(r"[-_.]", file)[0] for file in files}
    if not _are_splits(names):
        folder = posixpath.commonpath([posixpath.dirname(file) for file in table.files])
        files = [file.removeprefix(folder).lstrip("/") for file in table.files]
        names = {
            name for file in files for name in re.split("[^A-Za-z]+", file) if name.lower() in SPLIT_NAMES
        }
        pattern = f"(?:^|[-_./])({'|'.join(sorted(names))})[0-9]*[-_./]"
        is_plain = all(len(re.findall(pattern, file)) == 1 for file in files)
        return pattern if _are_splits(names) and is_plain else ""
    return f"(?:^|/)({'|'.join(sorted(names))})[-_.]"


def _are_splits(names: Collection[str]) -> bool:
    return "train" in names and len(names) > 1 and {name.lower() for name in names} <= SPLIT_NAMES


def _quoted(column: ColumnCounts, among: str) -> str:
    values = [value for value in column.values if value.strip()]
    if len(column.values) <= 3:
        return ", ".join(f"“{shown(value, 40)}”" for value in values)
    return f"“{shown(values[0] if values else '', 48)}”, {_different(column, among)}"


def _different(column: ColumnCounts, among: str) -> str:
    number = len(column.values)
    return f"{count(number)}{'+' * (number >= MOST_DISTINCT)} different{among}"


def _beside(inventory: Inventory, images: Sequence[str], kind: str) -> Reading | None:
    """Read the captions from files with the images' names."""
    partners = {posixpath.splitext(file)[0]: file for file in inventory.of([f".{kind}"])}
    paired = [image for image in images if posixpath.splitext(image)[0] in partners]
    if len(paired) < FEWEST * len(images):
        return None
    chosen = [partners[posixpath.splitext(image)[0]] for image in spread(paired, LOOKED_AT)]
    columns: dict[str, ColumnCounts] = {}
    for _, fields in observe(chosen, partial(_fields, inventory, kind)):
        add_row(columns, fields)
    captions = caption_columns(columns) if kind == "json" else list(columns.values())
    if kind == "json" and not captions:
        return None
    covered = len(paired) / len(images)
    grade: Grade = 2 if covered >= 0.95 else 1 if covered >= 0.5 else 0
    example = f"“{shown(next(iter(captions[0].values)), 48)}”" if captions else "none could be read"
    share = f"{count(len(paired))} of {count(len(images))} images have a .{kind} beside"
    found = [ConfigKey("captions", kind, f"{share}, such as {example}")]
    if kind == "json":
        why = "the caption's field; the others go into the sample's json"
        found.append(ConfigKey("field", captions[0].name, why))
    return _of_files(inventory, images, f"images with captions in .{kind}", grade, found)


def _by_folder(
    inventory: Inventory, images: Sequence[str], tables: SurveyedTables, others: Sequence[Reading]
) -> Iterator[Reading]:
    """Guess that the folders' names are the captions. A few images in no folder do not speak against it."""
    in_folders = [image for image in images if "/" in image]
    folders = Counter(posixpath.basename(posixpath.dirname(image)) for image in in_folders)
    names = sorted(folders)
    is_guess = 2 * len(in_folders) > len(images) and not date_folder(in_folders)
    if len(names) < 2 or set(names) <= SPLIT_FOLDERS or not is_guess:
        return
    warnings = [f"the captions are a guess, made of the folders' names: {enumerate_names(names)}"]
    used = {one.path for one in others}
    warnings += [one.warnings[0] for one in others if one.kind == "table" and one.grade == 0]
    warnings += [f"not used: {unused_table(inventory, one)}" for one in tables.joined if one.path not in used]
    warnings += _about_folders(images, in_folders)
    sizes = sorted(folders.values())
    each = count(sizes[0]) if sizes[0] == sizes[-1] else f"{count(sizes[0])} to {count(sizes[-1])}"
    classes = (
        f"{count(len(names))} classes, {enumerate_names(names)}, of {each} images each; {_level(in_folders)}"
    )
    why = "each sample draws one by its key; write what fits your images"
    found = [ConfigKey("captions", "folder", classes), ConfigKey("templates", ["a photo of a {}"], why)]
    reading = _of_files(inventory, images, "images in one folder per class", 1, found)
    yield replace(reading, warnings=warnings, is_guess=True, label=ConfigKey("label", "label"))


def _level(images: Sequence[str]) -> str:
    """Return which folder on the way to an image is taken for its class, with an example."""
    levels = sorted({image.count("/") for image in images})
    deepest = max(images, key=lambda image: image.count("/"))
    name = shown(posixpath.basename(posixpath.dirname(deepest)))
    if levels == [1]:
        return f"the folder that an image lies in, such as {name} for {shown(deepest)}"
    which = f"{levels[0]}" if len(levels) == 1 else f"{levels[0]} to {levels[-1]}"
    return f"the last of {which} folders that an image lies in, such as {name} for {shown(deepest)}"


def _about_folders(images: Sequence[str], in_folders: Sequence[str]) -> Iterator[str]:
    """Yield what is unusual about the folders: images in none, and several of one name."""
    loose = [image for image in images if "/" not in image]
    if loose:
        fix = f"move {'it' if len(loose) == 1 else 'them'} into one"
        which = enumerate_names(loose, 3)
        yield f"{counted(len(loose), 'image')} in no class folder ({which}), which the build rejects: {fix}"
    parents: dict[str, dict[str, None]] = defaultdict(dict)
    for image in in_folders:
        parent, _, name = posixpath.dirname(image).rpartition("/")
        parents[name][parent if parent not in SPLIT_FOLDERS else ""] = None
    merged = [name for name, found in parents.items() if len(found) > 1]
    if merged:
        places = enumerate_names([f"{parent}/{merged[0]}".lstrip("/") for parent in parents[merged[0]]], 3)
        more = f", as {counted(len(merged) - 1, 'other name')} do" if len(merged) > 1 else ""
        yield f"folders of one name make one class: {places}{more}"


def date_folder(images: Sequence[str]) -> str:
    """Return an example of the folders that most of the images lie in where these are dates, such as
    `2019/05`; "" where they are not."""
    found = [match[1] for image in images if (match := DATED.search(posixpath.dirname(image)))]
    return found[0] if 2 * len(found) > len(images) else ""


def _of_files(
    inventory: Inventory, images: Sequence[str], what: str, grade: Grade, captions: Sequence[ConfigKey]
) -> Reading:
    path = ConfigKey("path", inventory.given, counted(len(images), "image"))
    source = [ConfigKey("kind", "image_folder"), path, *captions]
    folders = {image.partition("/")[0] if "/" in image else "" for image in images}
    splits = propose_splits(len(images))
    if "train" in folders and len(folders) > 1 and folders <= SPLIT_FOLDERS:
        names = enumerate_names(sorted(folders))
        splits = ConfigKey("splits", {"from": "folder"}, f"the first folder names it: {names}")
    rules = _image_rules(map(suffix_of, images))
    shard = propose_shards(len(images), inventory.mean_size(images), is_kept=rules.is_alternative)
    dataset = [rules, splits, shard]
    return Reading("image_folder", what, "image_text", len(images), grade, source, dataset)


def _fields(inventory: Inventory, kind: str, file: str) -> Mapping[str, Any]:
    """Return the fields of a file of captions; a .txt has its text as the only one."""
    content = read_file(inventory.store, file, LARGEST_TEXT)
    return object_of(content) if kind == "json" else {"text": content.decode("utf-8-sig").strip()}
