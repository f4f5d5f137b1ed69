"""Fields of a sample's `json` member: read, looked up by a dotted path, turned into members."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.dataset.reasons import Reject


def object_of(content: bytes) -> dict[str, Any]:
    """The JSON object; Reject for anything else."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise Reject("source.unreadable", "json: no valid JSON") from None
    if not isinstance(value, dict):
        raise Reject("source.unreadable", "json: no JSON object")
    return value


def look_up(fields: Mapping[str, Any], path: str) -> Any:
    """The value of the field named `path`, else of the dotted path; None when there is none."""
    if path in fields:
        return fields[path]
    value: Any = fields
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def as_member(value: Any) -> bytes:
    """A field's value as a member's bytes: a text as it is, a list or object as JSON; Reject on bad text."""
    if isinstance(value, str):
        return encode(value)
    return encode(json.dumps(value, ensure_ascii=False, sort_keys=isinstance(value, dict)))


def encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Reject("caption.encoding", f"not UTF-8 at character {error.start + 1}") from None
