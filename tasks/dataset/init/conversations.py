"""Conversations about images in nanoVLM's row format: their columns, their turns and their ratings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.core.units import count, counted, percent
from tasks.dataset.init.columns import SurveyedTable, SurveyedTables
from tasks.dataset.init.evidence import (
    ConfigKey,
    Reading,
    enumerate_names,
    propose_shards,
    propose_splits,
    shown,
)
from tasks.dataset.init.inventory import Inventory, suffix_of
from tasks.dataset.modalities.chat import RATINGS
from tasks.dataset.sources.chat_rows import RATED, SUFFIXES

SUGGESTED = 3
TURN = {"user", "assistant"}
OTHER_TURNS = ({"from", "value"}, {"role", "content"})


def conversation_readings(inventory: Inventory, tables: SurveyedTables) -> list[Reading]:
    """Return one reading of all files with conversations, as subsets of one source, or else one per table."""
    found = [one for one in tables.joined if suffix_of(one.file) in SUFFIXES and _texts_column(one)]
    is_all = inventory.is_folder and not inventory.datasets
    if found and is_all and sum(len(one.files) for one in found) == len(inventory.of(SUFFIXES)):
        return [_reading(inventory, found, inventory.given)]
    return [_reading(inventory, [one], one.path) for one in found]


def other_conversations(tables: SurveyedTables) -> str:
    """Return what to do about conversations in a form that is not read; "" where there are none."""
    for table in tables.joined:
        for fields in table.kept:
            for name, value in fields.items():
                if any(_is_list_of(value, turn) for turn in OTHER_TURNS):
                    return (
                        f"{shown(name)} in {shown(table.file)} holds turns as "
                        f"{enumerate_names(sorted(value[0]))}: convert them to a column texts, a list of "
                        "{user, assistant}"
                    )
    return ""


def _reading(inventory: Inventory, tables: Sequence[SurveyedTable], path: str) -> Reading:
    first = tables[0]
    texts, images = str(_texts_column(first)), first.named("images", "image")
    if images is None:
        images = next((column for column in first.columns.values() if column.is_binary), None)
    rows, files = sum(one.rows for one in tables), [file for one in tables for file in one.files]
    about = "about " if any(one.is_estimate for one in tables) else ""
    where = f"{counted(len(files), 'file')}; columns {enumerate_names([*first.columns], 8)}"
    kept = [fields for one in tables for fields in one.kept]
    turns = [len(fields[texts]) for fields in kept if isinstance(fields.get(texts), list)]
    mean = f"{sum(turns) / max(len(turns), 1):.1f} per conversation in {count(len(turns))} looked at"
    held = "the conversations are about text alone"
    if images is not None:
        held = "the images themselves" if images.is_binary else "paths relative to the file"
    source = [
        ConfigKey("kind", "chat"),
        ConfigKey("path", path, f"{about}{count(rows)} conversations in {where}"),
        ConfigKey("images", None if images is None else images.name, held),
        ConfigKey("texts", texts, f"a list of {{user, assistant}}, {mean}"),
    ]
    key = first.named("id", "key", "uid", "uuid", "question_id")
    if key is not None and key.is_unique:
        why = "without it the row's content makes the key"
        source.append(ConfigKey("key", key.name, why, is_alternative=True))
    each = sum(map(inventory.size, files)) / max(rows, 1)
    dataset = [propose_splits(rows), propose_shards(rows, each, "512MB")]
    kept_shares = {}
    for name in RATINGS:
        cells = [fields.get(RATED[name]) for fields in kept]
        ratings = [one for cell in cells if isinstance(cell, list) for one in cell if isinstance(one, int)]
        if ratings:
            kept_shares[name] = percent(sum(one >= SUGGESTED for one in ratings) / len(ratings), 0)
    if kept_shares:
        shares = ", ".join(f"{name} keeps {share}" for name, share in kept_shares.items())
        why = f"drops turns rated lower: of those looked at {shares}"
        dataset.insert(0, ConfigKey("filter", dict.fromkeys(kept_shares, SUGGESTED), why, True))
    fix = "no column holds images; name one as images where there are any"
    warnings = [fix] if images is None else []
    return Reading("chat", "conversations about images", "chat", rows, 2, source, dataset, warnings)


def _texts_column(table: SurveyedTable) -> str | None:
    cells = (cell for fields in table.kept for cell in fields.items())
    return next((name for name, value in cells if _is_list_of(value, TURN)), None)


def _is_list_of(value: Any, turn: set[str]) -> bool:
    """Whether a cell is a list of objects with these fields."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and turn <= value[0].keys()
