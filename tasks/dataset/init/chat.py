"""Conversations about images in nanoVLM's row format: the columns, the turns, and how they are rated."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.core.units import count, counted, percent
from tasks.dataset.init.evidence import Key, Reading, listed, shown, splits_key
from tasks.dataset.init.inventory import Inventory, suffix_of
from tasks.dataset.init.profile import Profile
from tasks.dataset.init.table_sets import Tables, TableSet
from tasks.dataset.modalities.chat import RATINGS
from tasks.dataset.sources.chat import RATED, SUFFIXES

SUGGESTED = 3
OTHER_TURNS = ({"from", "value"}, {"role", "content"})


def readings(inventory: Inventory, tables: Tables) -> list[Reading]:
    """One reading of all files with conversations, as subsets of one source."""
    found = [one for one in tables.sets if suffix_of(one.files[0]) in SUFFIXES and texts_column(one.profile)]
    if not found:
        return []
    readable = [file for file in inventory.files if suffix_of(file) in SUFFIXES]
    is_all = inventory.is_folder and not inventory.datasets
    if is_all and sum(len(one.files) for one in found) == len(readable):
        return [_reading(found, inventory.given, tables)]
    return [_reading([one], one.path, tables) for one in found]


def other_conversations(tables: Tables) -> str:
    """What to do about conversations in a form that is not read; "" where there are none."""
    for one in tables.sets:
        for fields in one.profile.kept:
            for name, value in fields.items():
                if _is_list_of(value, *OTHER_TURNS):
                    where = f"{shown(name)} in {shown(one.files[0])}"
                    said = f"{where} holds turns as {listed(sorted(value[0]))}"
                    return f"{said}: convert them to a column texts, a list of {{user, assistant}}"
    return ""


def texts_column(profile: Profile) -> str | None:
    for fields in profile.kept:
        for name, value in fields.items():
            if _is_list_of(value, {"user", "assistant"}):
                return name
    return None


def images_column(profile: Profile) -> str | None:
    """A column of that name, else one of bytes; None where conversations have no image."""
    named = profile.named("images", "image")
    if named is not None:
        return named.name
    return next((column.name for column in profile.columns.values() if column.is_binary), None)


def _reading(sets: Sequence[TableSet], path: str, tables: Tables) -> Reading:
    first = sets[0].profile
    texts, images = texts_column(first), images_column(first)
    rows, files = sum(one.rows for one in sets), sum(len(one.files) for one in sets)
    about = "about " if any(one.is_about for one in sets) else ""
    kept = [fields for one in sets for fields in one.profile.kept]
    turns = [len(fields[str(texts)]) for fields in kept if isinstance(fields.get(str(texts)), list)]
    ratings = rating_counts(kept)
    where = f"{counted(files, 'file')}; columns {listed([*first.columns], 8)}"
    seen = [
        ("chat", f"{about}{count(rows)} conversations in {where}"),
        ("turns", f"{sum(turns) / max(len(turns), 1):.1f} a conversation in {count(len(turns))} looked at"),
    ]
    is_binary = images is not None and first.columns[images].is_binary
    held = "the images themselves" if is_binary else "paths relative to the file"
    seen.append(
        ("images", f"{shown(images)}: {held}" if images else "none: the conversations are about text")
    )
    seen += [("rated", _rated(name, its)) for name, its in ratings.items()]
    source = [
        Key("kind", "chat"),
        Key("path", path, f"{about}{count(rows)} rows; a file or folder is a subset"),
        Key("images", images, held if images else "no column holds any"),
        Key("texts", texts, "a list of {user, assistant}"),
    ]
    key = first.named("id", "key", "uid", "uuid", "question_id")
    if key is not None and key.is_unique:
        source.append(Key("key", key.name, "without it the row's content makes the key", is_aside=True))
    dataset = [*_filter(ratings), splits_key(rows), Key("shard", {"bytes": "512MB"}, "a maximum")]
    warnings = tables.warnings()
    if images is None:
        warnings.append("no column holds images; name one as images where there are any")
    return Reading("chat", "conversations about images", "chat", rows, 2, seen, warnings, source, dataset)


def rating_counts(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Counter[int]]:
    """How many turns have each rating, by its kind."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for fields in rows:
        for name in RATINGS:
            values = fields.get(RATED[name])
            if isinstance(values, list):
                counts[name].update(value for value in values if isinstance(value, int))
    return {name: its for name, its in counts.items() if its}


def _rated(name: str, counts: Counter[int]) -> str:
    total = sum(counts.values())
    each = ", ".join(f"{rating}: {percent(counts[rating] / total, 0)}" for rating in sorted(counts))
    return f"{name}: {each} of {count(total)} turns looked at"


def _filter(ratings: Mapping[str, Counter[int]]) -> list[Key]:
    if not ratings:
        return []
    kept = []
    for name, counts in ratings.items():
        share = sum(number for rating, number in counts.items() if rating >= SUGGESTED) / sum(counts.values())
        kept.append(f"{name} keeps {percent(share, 0)}")
    why = f"drops turns rated lower: {'; '.join(kept)}"
    return [Key("filter", dict.fromkeys(ratings, SUGGESTED), why, is_aside=True)]


def _is_list_of(value: Any, *turns: set[str]) -> bool:
    if not isinstance(value, list) or not value or not isinstance(value[0], dict):
        return False
    return any(turn <= value[0].keys() for turn in turns)
