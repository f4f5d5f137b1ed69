"""What a row of nanoVLM's format means: its images, its turns after the filter, its fields and its key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from tasks.core.schema import ChatSource
from tasks.dataset import filters
from tasks.dataset.modalities.chat import (
    RATINGS,
    Conversation,
    check_images,
    parse,
    require_pairs,
    select,
)
from tasks.dataset.rejects import Reason, Reject
from tasks.dataset.sources.cells import to_json

RATED = {name: f"{name}_ratings" for name in RATINGS}
"""The column with each kind of rating."""
SUBSET = "subset"


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A row understood. An image is its bytes or its path; `document` is the sample's `json` member.

    `original_key` is empty where the row's fault leaves none. Without a turn left `document` is empty, and a
    rule of the filter on `fields` is not met.
    """

    original_key: str
    fields: Mapping[str, Any]
    document: bytes = b""
    images: list[bytes | str] = field(default_factory=list)
    fault: tuple[Reason, str] | None = None


def interpret(row: Mapping[str, Any], subset: str, config: ChatSource, rules: Mapping[str, Any]) -> ChatRow:
    """Understand a row of a subset; `rules` are the dataset's filter."""
    taken = {config.images, config.texts, *RATED.values()}
    further = {name: value for name, value in row.items() if name not in taken}
    facts = {SUBSET: subset, **json.loads(json.dumps(further, default=str))}
    key = ""
    try:
        images = _images(None if config.images is None else row.get(config.images))
        key = _key(row, subset, config, images)
        require_pairs(row.get(config.texts))
        conversation = parse(row.get(config.texts), {name: row.get(column) for name, column in RATED.items()})
        check_images(conversation, len(images))
        left = select(
            conversation, lambda name, rating: name not in rules or filters.meets(rules[name], rating)
        )
        fields = facts | _ratings(left, rules, facts)
        if left is None:
            return ChatRow(key, fields)
        document = {**facts, "messages": left.turns, "ratings": left.ratings}
        return ChatRow(key, fields, to_json(document), images)
    except Reject as reject:
        return ChatRow(key, facts, fault=(reject.reason, reject.detail))


def _images(value: Any) -> list[bytes | str]:
    entries = value if isinstance(value, list) else [] if value is None else [value]
    return [_image(number, entry) for number, entry in enumerate(entries, 1)]


def _image(number: int, entry: Any) -> bytes | str:
    if isinstance(entry, dict):
        entry = entry.get("bytes") or entry.get("path")
    if isinstance(entry, bytes) or (isinstance(entry, str) and entry):
        return entry
    raise Reject("chat.images", f"image {number} is neither bytes nor a path")


def _key(row: Mapping[str, Any], subset: str, config: ChatSource, images: list[bytes | str]) -> str:
    """By the key's column, else by what is said about which images, wherever the row stands."""
    if config.key is not None:
        value = row.get(config.key)
        if value is None or value == "" or value != value:  # NaN is how data frames write that there is none
            raise Reject("source.unreadable", f"column {config.key} holds no key")
        return f"{subset}/{value}"
    running = blake2b(json.dumps(row.get(config.texts), sort_keys=True, default=str).encode(), digest_size=16)
    for image in images:
        content = image if isinstance(image, bytes) else image.encode("utf-8", "surrogatepass")
        running.update(len(content).to_bytes(8, "big"))
        running.update(content)
    return f"{subset}-{running.hexdigest()}"


def _ratings(left: Conversation | None, rules: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A conversation's ratings as the general filter sees them: the lowest of the turns that are left.

    Those turns have met the rules, so the lowest does. Without a turn left there is none, which meets no
    rule; turns that are not rated are kept, so what the rule asks for stands for them. A column of a rating's
    name is a rating of the whole conversation, unless its turns are rated as well.
    """
    if left is None:
        return dict.fromkeys(name for name in RATINGS if name in rules)
    lowest: dict[str, Any] = {}
    for name in RATINGS:
        rated = [rating for rating in left.ratings.get(name, ()) if rating is not None]
        if rated:
            lowest[name] = min(rated)
        elif name in rules and name not in facts:
            rule = rules[name]
            lowest[name] = rule[0] if isinstance(rule, list) and rule else rule
    return lowest
