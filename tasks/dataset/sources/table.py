"""Images and captions in tables: CSV, TSV, JSON lines or Parquet, the images as paths or as bytes.

Images with paths are read whenever their sample is wanted; a table of bytes is read once, in its own order.

An address may hold a signature or a password. It stands whole in an item's `content` alone, which nobody
sees; everywhere else, keys included, it stands without (`tasks.core.stores.address_key`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

from tasks.core.errors import DataError
from tasks.core.patterns import base_folder, expand
from tasks.core.schema import Dataset, TableSource
from tasks.core.stores import Stat, Store, address_key, is_remote, join_location, open_store
from tasks.dataset.formats.images import largest_bytes
from tasks.dataset.rejects import Reason, Reject
from tasks.dataset.sources.base import Container, Item
from tasks.dataset.sources.cells import content_key, embedded, row_text, text_of, to_json
from tasks.dataset.sources.columns import require
from tasks.dataset.sources.located import Located
from tasks.dataset.sources.presence import Needed
from tasks.dataset.sources.tabular import SUFFIXES, Row, Table, open_table
from tasks.dataset.tar.writer import Members, span_bytes

AT_ONCE = 256
"""Rows whose images are asked for together, where each costs a turn of the network."""
_PATH_WITHOUT_BYTES = (
    "the row names a path but holds no bytes; embed the images, or give the paths as a column of text"
)


class TableImages:
    """A row a sample. The row but image and caption becomes the `json` member."""

    def __init__(self, config: TableSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        self._limit = largest_bytes(dataset.image)
        self._keys = [config.key] if isinstance(config.key, str) else config.key or []
        roles = {"image": [config.image], "caption": [config.caption], "key": self._keys}
        self._asked = [(f"{config_key}.{role}", name) for role, names in roles.items() for name in names]
        splits = {"group_by": dataset.splits.group_by, "from": dataset.splits.column}
        self._asked += [(f"dataset.splits.{key}", name) for key, name in splits.items() if name is not None]
        self._asked += [("dataset.filter", name) for name in dataset.filter]
        self._wanted = {name for _, name in self._asked}
        self._addresses: dict[
            str, str
        ] = {}  # whole ones, by item's file, while the items at hand are looked at

    @cached_property
    def location(self) -> str:
        return base_folder(self._config.path)

    @property
    def is_sequential(self) -> bool:
        return self._config.image in self._first.binary

    def columns(self) -> Sequence[str]:
        """Of the first table; of JSON lines also of further ones, while a column is looked for."""
        columns = dict.fromkeys(self._first.columns)
        tables = islice(self._tables if self._first.columns_vary else (), 1, None)
        while not self._wanted <= columns.keys() and (name := next(tables, None)) is not None:
            table = self._open(name)
            table.close()
            columns.update(dict.fromkeys(table.columns))
        for key, name in self._asked:
            require(key, name, list(columns), self._first.name)
        return list(columns)

    def containers(self) -> Iterator[Container]:
        for name, table in self._tables.items():
            yield Container(name, self._store.stat(table))

    def items(self, container: Container) -> Iterator[Item]:
        table = self._open(container.name)
        self._require_sameness(table)
        if self.is_sequential:
            yield from (self._item_of_bytes(container.name, row) for row in table.rows)
        else:
            folder = container.name.rpartition("/")[0]
            items = (self._item_of_path(container.name, folder, row) for row in table.rows)
            while some := self._next(items):
                yield from some
        if self._store.stat(self._tables[container.name]) != container.stat:
            raise DataError(f"{table.location} has changed while it was read; run again")

    def _next(self, items: Iterator[Item]) -> list[Item]:
        self._addresses = {}
        some = list(islice(items, AT_ONCE))
        self._images.look_ahead(
            self._addresses.get(item.file, item.file) for item in some if item.fault is None
        )
        return some

    def stat(self, file: str) -> Stat:
        return self._images.stat(self._addresses.get(file, file))

    def read(self, file: str, content: str) -> Members:
        row = json.loads(content)
        written = row[self._config.image]
        with Needed(self._store):
            beside = self._beside(row)
            image = self._images.read(written if is_remote(written) else file, self._limit)
        return {**beside, "image": image}

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
    def _tables(self) -> dict[str, str]:
        """Relative to the location, by the names that people see."""
        found = expand(self._config.path, SUFFIXES, f"{self._config_key}.path")
        tables = [table.removeprefix(self.location).lstrip("/") for table in found]
        return {self._images.told(table): table for table in tables}

    @cached_property
    def _first(self) -> Table:
        """What its head tells; its rows are not for reading."""
        table = self._open(next(iter(self._tables)))
        table.close()
        return table

    def _open(self, name: str) -> Table:
        location = join_location(self.location, self._tables[name])
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

    def _item_of_path(self, table: str, folder: str, row: Row) -> Item:
        place = f"{table}:{row.line}"
        fields = row.fields
        if row.fault is not None:
            return Item(place, place, "", {}, "", ("source.unreadable", row.fault))
        written = fields.get(self._config.image)
        if not isinstance(written, str) or not written:
            return Item(place, place, "", fields, "", ("member.missing", "the row names no image"))
        name = self._images.name(written, folder)
        file = self._images.told(name)
        if file != name:
            self._addresses[file] = self._images.address(name)
            fields = {**fields, self._config.image: self._addresses[file]}
        original_key = self._key(fields) if self._keys else file
        if not original_key:
            return Item(place, place, file, fields, "", self._no_key)
        return Item(place, original_key, file, fields, row_text(fields))

    def _item_of_bytes(self, table: str, row: Row) -> Item:
        place = original_key = f"{table}:{row.line}"
        if row.fault is not None:
            return Item(place, place, table, {}, "", ("source.unreadable", row.fault))
        image, path = embedded(row.fields.get(self._config.image))
        path = address_key(path) if path is not None and is_remote(path) else path
        fields = {**row.fields, self._config.image: path}
        try:
            beside = self._beside(json.loads(row_text(fields)))
            if image is None:
                raise Reject("member.missing", _PATH_WITHOUT_BYTES if path else "the row holds no image")
            if len(image) > self._limit:
                raise Reject("image.too_large", f"{len(image):,} bytes, as no image within the limits has")
            original_key = self._key(fields) if self._keys else content_key(path, image, beside["txt"])
            if not original_key:
                raise Reject(*self._no_key)
        except Reject as reject:
            return Item(place, original_key or place, table, fields, "", (reject.reason, reject.detail))
        return Item(place, original_key, table, fields, "", members={**beside, "image": image})

    def _beside(self, row: dict[str, Any]) -> dict[str, bytes]:
        """The members but the image; Reject."""
        members = {"txt": text_of(row.pop(self._config.caption, None))}
        row.pop(self._config.image)
        if row:
            members["json"] = to_json(row)
        return members

    def _key(self, fields: Mapping[str, Any]) -> str:
        """What the key's columns hold; "" when one of them holds nothing."""
        values = [fields.get(name) for name in self._keys]
        if any(value is None or value == "" or value != value for value in values):
            return ""  # NaN is how data frames write that there is none
        return "/".join(address_key(text) if is_remote(text) else text for text in map(str, values))

    @property
    def _no_key(self) -> tuple[Reason, str]:
        what = "column" if len(self._keys) == 1 else "one of the columns"
        return "source.unreadable", f"{what} {', '.join(self._keys)} holds no key"
