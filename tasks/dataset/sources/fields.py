"""Fields of a raw sample, from a table's row or a `json` member: parsed, looked up, turned into members."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, NamedTuple

from tasks.dataset.version.rejects import Reject

MOST_NESTED = 100
"""Levels of nested lists and objects; far below what a deep stack allows, so that the result is the same
wherever the JSON is read."""
BYTE_ORDER_MARK = "\ufeff"
"""What begins a text in an encoding without such a mark of its own, as `utf-16-le` is."""
WINDOWS = "it is Windows-1252"
RECODE = f"; if {WINDOWS}: iconv -f cp1252 -t utf-8 OLD > NEW"
"""The fix for a text in another encoding, which spreadsheets on Windows write."""
NOT_A_TEXT = ("nan", "NaN")
"""How data frames write a missing text into CSV; in other formats it is the number."""

row_text = json.JSONEncoder(default=str, check_circular=False).encode
"""Encodes a row as JSON in ASCII, whatever its cells hold."""
_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False).encode
DECODER = json.JSONDecoder(parse_constant=lambda name: None)
"""Decodes NaN and Infinity, which Python writes but JSON lacks, as None."""


class TableRow(NamedTuple):  # a million of them are made in half the time that a frozen dataclass takes
    """One row of a table: the line where it begins, or its number in a file of Parquet or Arrow and among the
    elements of a JSON document, both from 1, and its fields or its fault."""

    line: int
    fields: dict[str, Any]
    fault: str | None = None


class Lookup:
    """Distinct texts by key, several per key, in the order in which they were added.

    SQLite keeps a private temporary database in memory until it outgrows its cache, then in a file that no
    other process sees and that is removed when this one ends.
    """

    def __init__(self, rows: Iterable[tuple[str, str]]) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE rows (key BLOB, value BLOB, UNIQUE (key, value))")
        self._database.execute("BEGIN")
        pairs = ((_raw(key), _raw(value)) for key, value in rows)
        self._database.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?)", pairs)
        self._database.execute("COMMIT")

    def every_key(self) -> Iterator[str]:
        """Yield the key of each text, as often as it has texts."""
        for (key,) in self._database.execute("SELECT key FROM rows"):
            yield key.decode("utf-8", "surrogatepass")

    def __getitem__(self, key: str) -> list[str]:
        query = "SELECT value FROM rows WHERE key = ? ORDER BY rowid"
        found = self._database.execute(query, (_raw(key),))
        return [value.decode("utf-8", "surrogatepass") for (value,) in found]


def text_of(value: Any, fix: str = RECODE) -> bytes:
    """Return a caption's cell as UTF-8; Reject when there is none, or its bytes were something else, which
    the `fix` ends."""
    if value is None or value != value or value in NOT_A_TEXT:
        raise Reject("caption.missing", "the row has no caption")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Reject("caption.missing", f"a {type(value).__name__} where a text belongs")
    return _encoded(str(value), fix)


def filled(templates: Sequence[str], label: str, sample: str) -> str:
    """Return the template that a sample draws by its own text, filled with its class."""
    drawn = blake2b(_raw(sample), digest_size=8, person=b"tarmac-sentence").digest()
    return templates[int.from_bytes(drawn, "big") % len(templates)].replace("{}", label)


def to_json(value: Any, fix: str = "") -> bytes:
    """Return canonical JSON in UTF-8, with null for NaN and Infinity, as JSON lacks both. Reject bad text."""
    try:
        try:
            text = _canonical(value)
        except ValueError:
            text = _canonical(_finite(value))
        return text.encode()
    except UnicodeEncodeError:
        raise Reject("caption.encoding", f"a further column of the row is not UTF-8{fix}") from None


def as_member(value: Any) -> bytes:
    """Return a field's value as a member's bytes: a text as it is, others as JSON. Reject on bad text."""
    return _encoded(value) if isinstance(value, str) else to_json(value)


def parse_json(content: bytes | str) -> Any:
    """Return the value; Reject for text that is no JSON, or nested too deeply to be written again."""
    try:
        text = content
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        value = DECODER.decode(text)
    except RecursionError:
        raise Reject("source.unreadable", "nested too deeply") from None
    except ValueError:
        raise Reject("source.unreadable", "no valid JSON") from None
    if text.count("[") + text.count("{") > MOST_NESTED and is_deep(value):
        raise Reject("source.unreadable", "nested too deeply")
    return value


def object_of(content: bytes) -> dict[str, Any]:
    """Return the JSON object in a sample's `json`; Reject for anything else."""
    try:
        value = parse_json(content)
    except Reject as reject:
        raise Reject(reject.reason, f"json: {reject.detail}") from None
    if not isinstance(value, dict):
        raise Reject("source.unreadable", "json: no JSON object")
    return value


def look_up(fields: Mapping[str, Any], path: str) -> Any:
    """Return the value of the field named `path`, else of the dotted path; None when there is none."""
    if path in fields:
        return fields[path]
    value: Any = fields
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def is_nothing(value: Any) -> bool:
    """Whether a cell holds no key; NaN is how data frames write that."""
    return value is None or value == "" or value != value


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _encoded(text: str, fix: str = RECODE) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Reject("caption.encoding", f"not UTF-8 at character {error.start + 1}{fix}") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return value


def is_deep(value: Any) -> bool:
    """Whether lists and objects are nested too deeply for JSON that is written again."""
    level = [value]
    for _ in range(MOST_NESTED):
        level = [one for one in level if isinstance(one, dict | list)]
        if not level:
            return False
        level = list(chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level))
    return any(isinstance(one, dict | list) for one in level)
