"""Cells of a row as members: an image, a caption as text, the rest of the row as JSON."""

from __future__ import annotations

import json
import math
from hashlib import blake2b
from typing import Any

from tasks.dataset.keys import stem
from tasks.dataset.rejects import Reject

row_text = json.JSONEncoder(default=str, check_circular=False).encode
"""A row as JSON in ASCII, whatever its cells hold."""
_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False).encode


NOT_A_TEXT = ("nan", "NaN")
"""How data frames write a missing text into CSV; elsewhere it is the number."""


def text_of(value: Any) -> bytes:
    """A caption's cell as UTF-8; Reject when there is none, or its bytes were something else."""
    if value is None or value != value or value in NOT_A_TEXT:
        raise Reject("caption.missing", "the row has no caption")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Reject("caption.missing", f"a {type(value).__name__} where a text belongs")
    try:
        return str(value).encode()
    except UnicodeEncodeError as error:
        raise Reject("caption.encoding", f"not UTF-8 at character {error.start + 1}") from None


def embedded(cell: Any) -> tuple[bytes | None, str | None]:
    """Bytes and path of an image's cell: bytes, or Hugging Face's `{bytes, path}`."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    path = cell.get("path") if isinstance(cell, dict) else None
    return (content if isinstance(content, bytes) else None), (path if isinstance(path, str) else None)


def content_key(path: str | None, image: bytes, text: bytes) -> str:
    """The same wherever the row stands, so that rows put in before it change no key; equal rows share one.

    The path alone would not do: it may repeat (a row a question about an image), and some sets name every
    image alike.
    """
    running = blake2b(image, digest_size=10)
    running.update(len(image).to_bytes(8, "big") + text)
    return f"{stem(path)}-{running.hexdigest()}" if path else running.hexdigest()


def to_json(value: Any) -> bytes:
    """Canonical JSON in UTF-8; numbers that JSON has not (NaN, Infinity) become null. Reject on bad text."""
    try:
        try:
            text = _canonical(value)
        except ValueError:
            text = _canonical(_finite(value))
        return text.encode()
    except UnicodeEncodeError:
        raise Reject("caption.encoding", "a further column of the row is not UTF-8") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return value
