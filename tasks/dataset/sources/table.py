"""Images and captions in tables: CSV, TSV, JSON lines or Parquet, the images as paths or as bytes.

Images with paths are read whenever their sample is wanted; a table of bytes is read once, in its own order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Dataset, TableSource
from tasks.core.stores import ABSENT, Stat, Store, base_of, expand, join_location, open_store
from tasks.dataset.reasons import Reason, Reject
from tasks.dataset.sources.reading.cells import content_key, embedded, text_of, to_json
from tasks.dataset.sources.reading.columns import require
from tasks.dataset.sources.reading.located import Located
from tasks.dataset.sources.reading.tabular import SUFFIXES, Row, Table, open_table
from tasks.dataset.sources.source import Container, Item
from tasks.dataset.tar import Members, span_bytes

__all__ = ["TableImages", "to_json"]

BYTES_PER_PIXEL = 8
"""16-bit RGBA; an image file with more than this for every allowed pixel cannot be within the limits."""
SLACK = 1 << 20
AT_ONCE = 256
"""Rows whose images are asked for together, where each costs a turn of the network."""


class TableImages:
    """A row a sample. The row but image and caption becomes the `json` member."""

    def __init__(self, config: TableSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        self._limit = dataset.image.max_pixels * BYTES_PER_PIXEL + SLACK
        roles = {f"{config_key}.{role}": getattr(config, role) for role in ("image", "caption", "key")}
        splits = {"group_by": dataset.splits.group_by, "from": dataset.splits.column}
        rules = {f"dataset.splits.{key}": name for key, name in splits.items()}
        self._asked = [(key, name) for key, name in (roles | rules).items() if name is not None]
        self._asked += [("dataset.filter", name) for name in dataset.filter]
        self._wanted = {name for _, name in self._asked}

    @cached_property
    def location(self) -> str:
        return base_of(self._config.path)

    @property
    def is_sequential(self) -> bool:
        return self._config.image in self._first.binary

    def columns(self) -> Sequence[str]:
        """Of the first table; of JSON lines also of further ones, while a column is looked for."""
        columns = dict.fromkeys(self._first.columns)
        tables = iter(self._tables[1:] if self._first.columns_vary else ())
        while not self._wanted <= columns.keys() and (table := next(tables, None)) is not None:
            columns.update(dict.fromkeys(self._open(table).columns))
        for key, name in self._asked:
            require(key, name, list(columns), self._first.name)
        return list(columns)

    def containers(self) -> Iterator[Container]:
        for table in self._tables:
            yield Container(table, self._store.stat(table))

    def items(self, container: Container) -> Iterator[Item]:
        table = self._open(container.name)
        self._require_sameness(table)
        if self.is_sequential:
            yield from (self._item_of_bytes(container.name, row) for row in table.rows)
        else:
            items = (self._item_of_path(container.name, row) for row in table.rows)
            while some := list(islice(items, AT_ONCE)):
                self._images.look_ahead([item.file for item in some if item.fault is None])
                yield from some
        if self._store.stat(container.name) != container.stat:
            raise DataError(f"{table.location} has changed while it was read; run again")

    def stat(self, file: str) -> Stat:
        return self._images.stat(file)

    def read(self, file: str, content: str) -> Members:
        try:
            return {**self._beside(json.loads(content)), "image": self._images.read(file, self._limit)}
        except Reject as reject:
            if reject.reason in ("member.missing", "source.unreadable") and not self._is_there():
                raise DataError(
                    f"{self.location}: the tables are not there any more (removed, or not mounted); bring "
                    "them back and run again, the current version stays as it was"
                ) from None
            raise

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        # The row as ASCII JSON is at least as long as the caption and the rest of the row in UTF-8.
        return span_bytes([max(size, 0), len(content), 0, 512])

    @cached_property
    def _store(self) -> Store:
        return open_store(self.location, f"{self._config_key}.path")

    @cached_property
    def _images(self) -> Located:
        return Located(self._store, f"{self._config_key}.path")

    @cached_property
    def _tables(self) -> list[str]:
        """Relative to the location."""
        found = expand(self._config.path, SUFFIXES, f"{self._config_key}.path")
        return [table.removeprefix(self.location).lstrip("/") for table in found]

    @cached_property
    def _first(self) -> Table:
        return self._open(self._tables[0])

    def _open(self, table: str) -> Table:
        location = join_location(self.location, table)
        return open_table(location, f"{self._config_key}.path", self._wanted, self._config.image)

    def _require_sameness(self, table: Table) -> None:
        """One table of several must not quietly give samples without what the others have."""
        if (self._config.image in table.binary) != self.is_sequential:
            raise DataError(
                f"{table.location}: column {self._config.image!r} holds paths in some tables and bytes in "
                "others; give them as two sources"
            )
        for key, name in () if table.columns_vary else self._asked:
            require(key, name, table.columns, table.name)

    def _is_there(self) -> bool:
        try:
            return self._store.stat(self._tables[0]) != ABSENT
        except UsageError:
            return False

    def _item_of_path(self, table: str, row: Row) -> Item:
        place = f"{table}:{row.line}"
        if row.fault is not None:
            return Item(place, place, "", {}, "", ("source.unreadable", row.fault))
        image = row.fields.get(self._config.image)
        if not isinstance(image, str) or not image:
            return Item(place, place, "", row.fields, "", ("member.missing", "the row names no image"))
        file = self._images.name(image, table.rpartition("/")[0])
        original_key = file if self._config.key is None else self._key(row.fields)
        if not original_key:
            return Item(place, place, file, row.fields, "", self._no_key)
        return Item(place, original_key, file, row.fields, json.dumps(row.fields, default=str))

    def _item_of_bytes(self, table: str, row: Row) -> Item:
        place = original_key = f"{table}:{row.line}"
        if row.fault is not None:
            return Item(place, place, table, {}, "", ("source.unreadable", row.fault))
        image, path = embedded(row.fields.get(self._config.image))
        fields = {**row.fields, self._config.image: path}
        try:
            beside = self._beside(json.loads(json.dumps(fields, default=str)))
            if image is None and path:
                image = self._images.read(self._images.name(path, table.rpartition("/")[0]), self._limit)
            if image is None:
                raise Reject("member.missing", "the row holds no image")
            if len(image) > self._limit:
                raise Reject("image.too_large", f"{len(image):,} bytes, as no image within the limits has")
            original_key = self._key(fields) if self._config.key else content_key(path, image, beside["txt"])
            if not original_key:
                raise Reject(*self._no_key)
        except Reject as reject:
            return Item(place, original_key or place, table, fields, "", (reject.reason, reject.detail))
        return Item(place, original_key, table, fields, "", None, {**beside, "image": image})

    def _beside(self, row: dict[str, Any]) -> dict[str, bytes]:
        """The members but the image; Reject."""
        members = {"txt": text_of(row.pop(self._config.caption, None))}
        row.pop(self._config.image)
        if row:
            members["json"] = to_json(row)
        return members

    def _key(self, fields: Mapping[str, Any]) -> str:
        """What the key's column holds; "" when that is nothing."""
        key = fields.get(str(self._config.key))
        return "" if key is None else str(key)

    @property
    def _no_key(self) -> tuple[Reason, str]:
        return "source.unreadable", f"column {self._config.key} holds no key"
