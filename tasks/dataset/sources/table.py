"""Images whose paths and captions stand in a table: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from tasks.core.schema import Dataset, TableSource
from tasks.dataset.reasons import Reject
from tasks.dataset.sources.columns import require
from tasks.dataset.sources.source import Item, read_file
from tasks.dataset.sources.tabular import Row, Table, open_table
from tasks.dataset.tar import Members, span_bytes

BYTES_PER_PIXEL = 8
"""16-bit RGBA; an image file with more than this for every allowed pixel cannot be within the limits."""
SLACK = 1 << 20


class TableImages:
    """A row a sample. The row but image and caption becomes the `json` member."""

    def __init__(self, config: TableSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        self._limit = dataset.image.max_pixels * BYTES_PER_PIXEL + SLACK
        self._opened: Table | None = None
        self.root = config.path.absolute().parent

    def columns(self) -> Sequence[str]:
        self._opened = self._opened or self._open()
        return self._opened.columns

    def items(self) -> Iterator[Item]:
        table, self._opened = self._opened or self._open(), None
        for row in table.rows:
            yield self._item(f"{table.path.name}:{row.line}", row)

    def read(self, file: str, content: str) -> Members:
        row = json.loads(content)
        members = {
            "txt": _text(row.pop(self._config.caption, None)),
            "image": read_file(self.root / file, self._limit),
        }
        row.pop(self._config.image)
        if row:
            members["json"] = to_json(row)
        return members

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        # The row as ASCII JSON is at least as long as the caption and the rest of the row in UTF-8.
        return span_bytes([max(size, 0), len(content), 0, 512])

    def _open(self) -> Table:
        table = open_table(self._config.path, f"{self._config_key}.path")
        for role in ("image", "caption", "key"):
            name = getattr(self._config, role)
            if name is not None:
                require(f"{self._config_key}.{role}", name, table.columns, table.path.name)
        return table

    def _item(self, place: str, row: Row) -> Item:
        if row.fault is not None:
            return Item(place, place, "", {}, "", ("source.unreadable", row.fault))
        image = row.fields.get(self._config.image)
        if not isinstance(image, str) or not image:
            return Item(place, place, "", row.fields, "", ("member.missing", "the row names no image"))
        file = self._relative(image)
        original_key = file if self._config.key is None else row.fields.get(self._config.key)
        if original_key is None or original_key == "":
            fault = f"column {self._config.key} holds no key"
            return Item(place, place, file, row.fields, "", ("source.unreadable", fault))
        return Item(place, str(original_key), file, row.fields, json.dumps(row.fields, default=str))

    def _relative(self, image: str) -> str:
        """The path as it counts for keys: relative to the table's folder where it lies in there."""
        if "/" not in image:
            return image
        path = os.path.normpath(image)
        inside = f"{self.root}/"
        return path.removeprefix(inside) if path.startswith(inside) else path


def _text(value: Any) -> bytes:
    """A caption's cell as UTF-8; Reject when there is none, or its bytes were something else."""
    if value is None or value != value:  # NaN is how data frames write a missing text
        raise Reject("caption.missing", "the row has no caption")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Reject("caption.missing", f"a {type(value).__name__} where a text belongs")
    try:
        return str(value).encode()
    except UnicodeEncodeError as error:
        raise Reject("caption.encoding", f"not UTF-8 at character {error.start + 1}") from None


def to_json(value: Any) -> bytes:
    """Canonical JSON in UTF-8; numbers that JSON has not (NaN, Infinity) become null. Reject on bad text."""
    try:
        text = json.dumps(_finite(value), sort_keys=True, ensure_ascii=False, allow_nan=False)
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
