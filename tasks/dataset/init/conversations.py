"""Conversations about images in nanoVLM's row format: the columns, the turns, and how they are rated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.units import count, counted, percent
from tasks.dataset.init.columns import SurveyedTable, SurveyedTables
from tasks.dataset.init.evidence import Key, Reading, enumerate_names, shard_key, shown, splits_key
from tasks.dataset.init.inventory import Inventory, suffix_of
from tasks.dataset.modalities.chat import RATINGS
from tasks.dataset.sources.chat_rows import RATED, SUFFIXES

SUGGESTED = 3
TURN = {"user", "assistant"}
OTHER_TURNS = ({"from", "value"}, {"role", "content"})


def conversation_readings(inventory: Inventory, tables: SurveyedTables) -> list[Reading]:
    """One reading of all files with conversations, as subsets of one source."""
    found = [one for one in tables.joined if suffix_of(one.file) in SUFFIXES and _texts_column(one)]
    if not found:
        return []
    readable = [file for file in inventory.files if suffix_of(file) in SUFFIXES]
    is_all = inventory.is_folder and not inventory.datasets
    if is_all and sum(len(one.files) for one in found) == len(readable):
        return [_reading(inventory, found, inventory.given)]
    return [_reading(inventory, [one], one.path) for one in found]


def other_conversations(tables: SurveyedTables) -> str:
    """What to do about conversations in a form that is not read; "" where there are none."""
    for one in tables.joined:
        for fields in one.kept:
            for name, value in fields.items():
                if any(_is_list_of(value, turn) for turn in OTHER_TURNS):
                    where = f"{shown(name)} in {shown(one.file)}"
                    form = enumerate_names(sorted(value[0]))
                    fix = "convert them to a column texts, a list of {user, assistant}"
                    return f"{where} holds turns as {form}: {fix}"
    return ""


def _reading(inventory: Inventory, joined: Sequence[SurveyedTable], path: str) -> Reading:
    first = joined[0]
    texts, images = str(_texts_column(first)), _images_column(first)
    rows, files = sum(one.rows for one in joined), sum(len(one.files) for one in joined)
    about = "about " if any(one.is_estimate for one in joined) else ""
    kept = [fields for one in joined for fields in one.kept]
    turns = [len(fields[texts]) for fields in kept if isinstance(fields.get(texts), list)]
    rated = _kept_by_rating(kept)
    is_binary = images is not None and first.columns[images].is_binary
    held = "the images themselves" if is_binary else "paths relative to the file"
    where = f"{counted(files, 'file')}; columns {enumerate_names([*first.columns], 8)}"
    mean = sum(turns) / max(len(turns), 1)
    seen = [
        ("chat", f"{about}{count(rows)} conversations in {where}"),
        ("turns", f"{mean:.1f} per conversation in {count(len(turns))} looked at"),
        ("images", f"{shown(images)}: {held}" if images else "none: the conversations are about text"),
    ]
    each = sum(inventory.size(file) for one in joined for file in one.files) / max(rows, 1)
    dataset = [splits_key(rows), shard_key(rows, each, "512MB")]
    if rated:
        seen.append(("rated", f"{enumerate_names(list(rated))} of the turns"))
        shares = ", ".join(f"{name} keeps {share}" for name, share in rated.items())
        why = f"drops turns rated lower: of those looked at {shares}"
        dataset.insert(0, Key("filter", dict.fromkeys(rated, SUGGESTED), why, is_alternative=True))
    source = [
        Key("kind", "chat"),
        Key("path", path, f"{about}{count(rows)} rows; a file or folder is a subset"),
        Key("images", images, held if images else "no column holds any"),
        Key("texts", texts, "a list of {user, assistant}"),
    ]
    key = first.named("id", "key", "uid", "uuid", "question_id")
    if key is not None and key.is_unique:
        source.append(Key("key", key.name, "without it the row's content makes the key", is_alternative=True))
    fix = "no column holds images; name one as images where there are any"
    warnings = [] if images is not None else [fix]
    return Reading("chat", "conversations about images", "chat", rows, 2, seen, warnings, source, dataset)


def _texts_column(table: SurveyedTable) -> str | None:
    cells = (cell for fields in table.kept for cell in fields.items())
    return next((name for name, value in cells if _is_list_of(value, TURN)), None)


def _images_column(table: SurveyedTable) -> str | None:
    """A column of that name, else one of bytes; None where conversations have no image."""
    named = table.named("images", "image")
    if named is not None:
        return named.name
    return next((column.name for column in table.columns.values() if column.is_binary), None)


def _kept_by_rating(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The share of turns that are rated SUGGESTED or higher, by each kind of rating that the rows hold."""
    kept = {}
    for name in RATINGS:
        cells = (fields.get(RATED[name]) for fields in rows)
        lists = (cell for cell in cells if isinstance(cell, list))
        ratings = [rating for some in lists for rating in some if isinstance(rating, int)]
        if ratings:
            kept[name] = percent(sum(rating >= SUGGESTED for rating in ratings) / len(ratings), 0)
    return kept


def _is_list_of(value: Any, turn: set[str]) -> bool:
    """Whether a cell is a list of objects with these fields."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and turn <= value[0].keys()
