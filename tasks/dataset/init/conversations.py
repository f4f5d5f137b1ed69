"""Conversations, mostly about images: their columns, the form of their turns, where the images are, the
ratings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tasks.core.errors import TarmacError
from tasks.core.stores import StoreUnreachable
from tasks.core.units import count, counted, percent
from tasks.dataset.init.column_counts import ColumnCounts
from tasks.dataset.init.columns import MOST_TABLES, SurveyedTable, SurveyedTables, survey_tables
from tasks.dataset.init.evidence import (
    ConfigKey,
    Grade,
    Reading,
    enumerate_names,
    propose_shards,
    propose_splits,
    spread,
)
from tasks.dataset.init.image_places import place_of_images
from tasks.dataset.init.inventory import IMAGES, Inventory, suffix_of
from tasks.dataset.modalities.chat import RATINGS
from tasks.dataset.sources.chat_rows import RATED, SUFFIXES
from tasks.dataset.sources.chat_turns import DATA_URI, FORMS, Dialogue, form_of, pair_turns
from tasks.dataset.sources.raw_files import read_start
from tasks.dataset.version.rejects import Reject

SUGGESTED = 3
PAIR = {"user", "assistant"}
WRITERS = {FORMS[0]: "LLaVA and ShareGPT write", FORMS[1]: "OpenAI and transformers write"}
ARRAY = ".json"
BEGINNING = 1 << 16
"""Bytes of a `.json` that show whether it lists conversations."""
IMAGE_COLUMNS = ("images", "image", "image_path", "img")


class _Images(NamedTuple):
    """Where the conversations' images are: keys of the source, how well they can be read, what to mend, and
    the bytes of each that lies in a file of its own."""

    keys: Sequence[ConfigKey]
    grade: Grade = 2
    doubt: str = ""
    each_bytes: float = 0
    are_there: bool = True


def conversation_readings(inventory: Inventory, tables: SurveyedTables) -> list[Reading]:
    """Return one reading of all files with conversations, as subsets of one source, or else one per table."""
    found = [one for one in tables.joined if suffix_of(one.file) in SUFFIXES and _texts_column(one)]
    is_all = inventory.is_folder and not inventory.datasets
    if found and is_all and sum(len(one.files) for one in found) == len(inventory.of(SUFFIXES)):
        readings = [_reading(inventory, found, inventory.given)]
    else:
        readings = [_reading(inventory, [one], one.path) for one in found]
    chosen = spread(inventory.of([ARRAY]), MOST_TABLES)
    arrays = survey_tables(inventory, [file for file in chosen if _lists_turns(inventory, file)])
    listed = [one for one in arrays.joined if _texts_column(one)]
    return readings + [_reading(inventory, [one], one.path) for one in listed]


def _lists_turns(inventory: Inventory, file: str) -> bool:
    """Whether a `.json` begins as an array, or as lines, of objects with turns."""
    try:
        start = read_start(inventory.store, file, BEGINNING).lstrip(b"\xef\xbb\xbf \t\r\n")
    except StoreUnreachable:
        raise
    except (Reject, TarmacError, OSError):
        return False
    is_listing = start.startswith(b"[") or start.partition(b"\n")[0].rstrip().endswith(b"}")
    return is_listing and any(name in start for name in (b'"from"', b'"role"', b'"assistant"'))


def _reading(inventory: Inventory, tables: Sequence[SurveyedTable], path: str) -> Reading:
    first = tables[0]
    texts = str(_texts_column(first))
    rows, files = sum(one.rows for one in tables), [file for one in tables for file in one.files]
    about = "about " if any(one.is_estimate for one in tables) else ""
    where = f"{counted(len(files), 'file')}; columns {enumerate_names([*first.columns], 8)}"
    kept = [fields for one in tables for fields in one.kept]
    found = _images(inventory, first, texts)
    source = [
        ConfigKey("kind", "chat"),
        ConfigKey("path", path, f"{about}{count(rows)} conversations in {where}"),
        *found.keys,
        ConfigKey("texts", texts, _described(texts, kept)),
    ]
    key = first.named("id", "key", "uid", "uuid", "question_id")
    if key is not None and key.is_unique:
        why = "without it the row's content makes the key"
        source.append(ConfigKey("key", key.name, why, is_alternative=True))
    each = sum(map(inventory.size, files)) / max(rows, 1) + found.each_bytes
    dataset = [propose_splits(rows), propose_shards(rows, each, "512MB")]
    if rules := _rules(kept):
        dataset.insert(0, rules)
    what = "conversations about images" if found.are_there else "conversations"
    warnings = [found.doubt] if found.doubt else []
    return Reading("chat", what, "chat", rows, found.grade, source, dataset, warnings)


def _described(texts: str, kept: Sequence[Mapping[str, Any]]) -> str:
    """Return the form of the turns, and how many there are per conversation."""
    cells = [fields[texts] for fields in kept if isinstance(fields.get(texts), list)]
    form = next((found for cell in cells if (found := form_of(cell)) is not None), None)
    pairs = [len(cell) if form is None else len(cell) // 2 for cell in cells]
    mean = f"{sum(pairs) / max(len(pairs), 1):.1f} per conversation in {count(len(pairs))} looked at"
    if form is None:
        return f"a list of {{user, assistant}}, {mean}"
    told = [one for cell in cells if (one := _told(cell)) is not None]
    system = sum(bool(one.system) for one in told)
    notes = f"; {count(system)} with a system message" if system else ""
    if len(told) < len(cells):
        notes += f"; {count(len(cells) - len(told))} whose turns do not alternate, which are rejected"
    return f"a list of {{{', '.join(form)}}} as {WRITERS[form]}, in pairs {mean}{notes}"


def _told(cell: Any) -> Dialogue | None:
    """Return a cell's turns as pairs; None where the build rejects them."""
    try:
        return pair_turns(cell)
    except Reject:
        return None


def _images(inventory: Inventory, table: SurveyedTable, texts: str) -> _Images:
    """Return where a table's images are: in a column of its own, else within the messages."""
    columns = table.columns
    column = table.named(*IMAGE_COLUMNS) or next((one for one in columns.values() if one.is_binary), None)
    within = [image for fields in table.kept if (one := _told(fields.get(texts))) for image in one.images]
    if not within and column is None:
        doubt = "no column holds images; name one as images where there are any"
        return _Images([ConfigKey("images", None, "text alone")], 2, doubt, are_there=False)
    if not within and column is not None and column.is_binary:
        return _Images([ConfigKey("images", column.name, "the images themselves")])
    name, where = None, "they stand in the messages, as "
    names = [image for image in within if isinstance(image, str)]
    if not within and column is not None:
        name, where, names = column.name, "", list(_names(table, column.name))
    if not names:
        return _Images([ConfigKey("images", name, f"{where}nothing in the rows looked at")])
    if any(written.startswith(DATA_URI) for written in names):
        return _Images([ConfigKey("images", name, f"{where}data: URIs")])
    named = ColumnCounts(name or texts)
    for written in names:
        named.add(written.removeprefix("file://"))
    place = place_of_images(inventory, table, named)
    keys = [ConfigKey("images", name, f"{where}{place.evidence}")]
    keys += [ConfigKey("root", place.root, place.why)] if place.root is not None else []
    each = inventory.mean_size(inventory.of(IMAGES))
    return _Images(keys, place.grade, place.problem, each)


def _names(table: SurveyedTable, column: str) -> Iterator[str]:
    """Yield the images that the cells of a column name: paths, addresses and `data:` URIs."""
    for fields in table.kept:
        cell = fields.get(column)
        for one in cell if isinstance(cell, list) else [cell]:
            name = one.get("path") if isinstance(one, dict) else one
            if isinstance(name, str) and name:
                yield name


def _rules(kept: Sequence[Mapping[str, Any]]) -> ConfigKey | None:
    """Suggest a filter by the ratings of turns, with the share of turns that it keeps."""
    kept_shares = {}
    for name in RATINGS:
        cells = [fields.get(RATED[name]) for fields in kept]
        ratings = [one for cell in cells if isinstance(cell, list) for one in cell if isinstance(one, int)]
        if ratings:
            kept_shares[name] = percent(sum(one >= SUGGESTED for one in ratings) / len(ratings), 0)
    if not kept_shares:
        return None
    shares = ", ".join(f"{name} keeps {share}" for name, share in kept_shares.items())
    why = f"drops turns rated lower: of those looked at {shares}"
    return ConfigKey("filter", dict.fromkeys(kept_shares, SUGGESTED), why, True)


def _texts_column(table: SurveyedTable) -> str | None:
    cells = (cell for fields in table.kept for cell in fields.items())
    return next((name for name, value in cells if _holds_turns(value)), None)


def _holds_turns(value: Any) -> bool:
    """Whether a cell is a list of turns in a form that is read."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and (first.keys() >= PAIR or form_of(value) is not None)
