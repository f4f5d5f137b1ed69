"""Fields of a sample's `json` member: read, looked up by a dotted path, turned into members."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tasks.dataset.rejects import Reject
from tasks.dataset.sources.cells import to_json

MOST_NESTED = 100
"""Lists and objects within one another; far below what a deep stack has room for, so that the answer is the
same wherever the JSON is read."""
_DECODER = json.JSONDecoder(parse_constant=lambda name: None)
"""NaN and Infinity, which Python writes and JSON has not, are nothing."""


def parse_json(content: bytes | str) -> Any:
    """The value; Reject for what is no JSON, or is nested too deeply to be written again."""
    try:
        text = content if isinstance(content, str) else _text(content)
        value = _DECODER.decode(text)
    except RecursionError:
        raise Reject("source.unreadable", "nested too deeply") from None
    except ValueError:
        raise Reject("source.unreadable", "no valid JSON") from None
    if text.count("[") + text.count("{") > MOST_NESTED and _is_deep(value):
        raise Reject("source.unreadable", "nested too deeply")
    return value


def _text(content: bytes) -> str:
    return content.decode(json.detect_encoding(content), "surrogatepass")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MOST_NESTED):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
    return any(isinstance(one, dict | list) for one in level)


def object_of(content: bytes) -> dict[str, Any]:
    """The JSON object; Reject for anything else."""
    try:
        value = parse_json(content)
    except Reject as reject:
        raise Reject(reject.reason, f"json: {reject.detail}") from None
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
    return encode(value) if isinstance(value, str) else to_json(value)


def encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Reject("caption.encoding", f"not UTF-8 at character {error.start + 1}") from None
