"""Images and captions in tables: CSV, TSV, JSON lines or Parquet, the images as paths or as bytes.

Images with paths are read whenever their sample is wanted; a table of bytes is read once, in its own order.

An address may hold a signature or a password. It stands whole in an item's `content` alone, which no
page shows; everywhere else, keys included, it stands without (`tasks.core.stores.address_key`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from itertools import compress, islice
from typing import Any

from tasks.core.errors import DataError, UsageError
from tasks.core.patterns import base_folder
from tasks.core.schema import Dataset, TableSource
from tasks.core.stores import ABSENT, ObjectStat, address_key, is_remote
from tasks.dataset.filters import passes
from tasks.dataset.formats.images import largest_bytes
from tasks.dataset.keys import stem
from tasks.dataset.rejects import Reason, Reject
from tasks.dataset.sources.fields import TableRow, filled, is_nothing, row_text, text_of, to_json
from tasks.dataset.sources.protocol import Container, RawSample, fault_of
from tasks.dataset.sources.raw_files import Files, LinkedFiles, SourceCheck
from tasks.dataset.sources.tabular import SUFFIXES, OpenTable, open_table, require
from tasks.dataset.tar.format import Members, span_bytes

AT_ONCE = 256
"""Rows whose images are asked for together, where each costs a turn of the network."""
_PATH_WITHOUT_BYTES = (
    "the row names a path but holds no bytes; embed the images, or give the paths as a column of text"
)


class TableImages:
    """A sample per row. The row but image and caption becomes the `json` member."""

    passed_over: Mapping[str, int] = {}

    def __init__(self, config: TableSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        self._files = Files(config.path, SUFFIXES, f"{config_key}.path")
        self._filter = dataset.filter
        self._limit = largest_bytes(dataset.image)
        self._keys = [config.key] if isinstance(config.key, str) else config.key or []
        roles = {"image": [config.image], "caption": [config.caption], "key": self._keys}
        self._asked = [(f"{config_key}.{role}", name) for role, names in roles.items() for name in names]
        splits = {"group_by": dataset.splits.group_by, "from": dataset.splits.column}
        self._asked += [(f"dataset.splits.{key}", name) for key, name in splits.items() if name is not None]
        self._asked += [("dataset.filter", name) for name in dataset.filter]
        self._wanted = {name for _, name in self._asked}
        self._unread: tuple[OpenTable, ObjectStat] | None = None

    @cached_property
    def location(self) -> str:
        return base_folder(self._config.path)

    @property
    def is_sequential(self) -> bool:
        return self._config.image in self._first.binary

    def columns(self) -> Sequence[str]:
        """Of the first table; of JSON lines also of further ones, while a column is looked for."""
        columns = dict.fromkeys(self._first.columns)
        tables = islice(self._files.names if self._first.columns_vary else (), 1, None)
        while not self._wanted <= columns.keys() and (name := next(tables, None)) is not None:
            table = self._open(name)
            table.close()
            columns.update(dict.fromkeys(table.columns))
        for key, name in self._asked:
            require(key, name, list(columns), self._first.name)
        return list(columns)

    def containers(self) -> Iterator[Container]:
        for name, stat in self._files.stats():
            yield Container(name, stat)

    def items(self, container: Container) -> Iterator[RawSample]:
        name = container.name
        table = self._opened(name, container.stat)
        self._require_sameness(table)
        if self.is_sequential:
            yield from (self._item_of_bytes(name, row) for row in table.rows)
        else:
            while rows := list(islice(table.rows, AT_ONCE)):
                yield from self._items_of_paths(name, rows)
        if self._files.stat(name) != container.stat:
            raise DataError(f"{table.location} has changed while it was read; run again")

    def read(self, file: str, content: str) -> Members:
        row = json.loads(content)
        written = row[self._config.image]
        with SourceCheck(self._files.store):
            beside = self._beside(row)
            image = self._images.read(written if is_remote(written) else file, self._limit)
        return {**beside, "image": image}

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        # The row as ASCII JSON is at least as long as the caption and the rest of the row in UTF-8.
        return span_bytes([max(size, 0), len(content), 0, 512])

    @cached_property
    def _images(self) -> LinkedFiles:
        return LinkedFiles(self._files.store, f"{self._config_key}.path")

    @cached_property
    def _first(self) -> OpenTable:
        """The first table, for its columns. It stays open for the listing that follows."""
        name = self._files.names[0]
        stat = self._files.stat(name)
        table = self._open(name)
        self._unread = table, stat
        return table

    def _open(self, name: str) -> OpenTable:
        location = self._files.location(name)
        table = open_table(location, f"{self._config_key}.path", self._wanted, self._config.image)
        fields = self._fields_of(name, table)
        if not fields:
            return table
        rows = (row._replace(fields={**row.fields, **fields}) for row in table.rows)
        return replace(table, columns=[*table.columns, *fields], rows=rows)

    def _fields_of(self, name: str, table: OpenTable) -> dict[str, str]:
        """What the table's path says of each of its rows; UsageError where it does not say it."""
        found = {}
        for field, pattern in self._config.fields.items():
            key = f"{self._config_key}.fields.{field}"
            match = re.search(pattern, name)
            if match is None or match[1] is None:
                raise UsageError(
                    f"{key}: {pattern!r} does not fit {table.location}; leave it out of path, or mend it"
                )
            if field in table.columns:
                raise UsageError(f"{key}: {table.location} has a column {field!r} itself; rename the field")
            found[field] = match[1]
        return found

    def _opened(self, name: str, stat: ObjectStat) -> OpenTable:
        """The table, its rows not read yet; the first one is not opened twice unless it has changed."""
        if name == self._files.names[0] and self._unread is not None:
            (table, its_stat), self._unread = self._unread, None
            if stat == its_stat:
                return table
            table.close()
        return self._open(name)

    def _require_sameness(self, table: OpenTable) -> None:
        """One table of several must not quietly give samples without what the others have."""
        if (self._config.image in table.binary) != self.is_sequential:
            raise DataError(
                f"{table.location}: column {self._config.image!r} holds paths in some tables and bytes in "
                "others; give them as two sources"
            )
        for key, name in () if table.columns_vary else self._asked:
            require(key, name, table.columns, table.name)

    def _items_of_paths(self, table: str, rows: Sequence[TableRow]) -> Iterator[RawSample]:
        """Samples of the rows, their images looked at together, but for those that the filter leaves out."""
        folder = table.rpartition("/")[0]
        names = [self._image_of(row, folder) for row in rows]
        looked_at = [
            bool(name) and passes(self._filter, row.fields) for row, name in zip(rows, names, strict=True)
        ]
        stats = iter(self._images.stats(list(compress(names, looked_at))))
        for row, name, is_looked_at in zip(rows, names, looked_at, strict=True):
            place = f"{table}:{row.line}"
            if row.fault is not None:
                yield RawSample(place, place, "", {}, fault=("source.unreadable", row.fault))
            elif not name:
                yield RawSample(
                    place, place, "", row.fields, fault=("member.missing", "the row names no image")
                )
            else:
                yield self._item_of_path(place, row.fields, name, next(stats) if is_looked_at else ABSENT)

    def _image_of(self, row: TableRow, folder: str) -> str:
        """The name of the row's image; "" when it has none."""
        written = row.fields.get(self._config.image)
        return self._images.name(written, folder) if isinstance(written, str) and written else ""

    def _item_of_path(
        self, place: str, fields: dict[str, Any], name: str, stat: ObjectStat | Reject
    ) -> RawSample:
        file = self._images.public_name(name)
        if file != name:
            fields = {**fields, self._config.image: self._images.address(name)}
        original_key = self._key(fields) if self._keys else file
        if not original_key:
            return RawSample(place, place, file, fields, fault=self._no_key(fields))
        if isinstance(stat, Reject):
            return RawSample(place, original_key, file, fields, fault=fault_of(stat), may_pass=True)
        return RawSample(place, original_key, file, fields, row_text(fields), stat)

    def _item_of_bytes(self, table: str, row: TableRow) -> RawSample:
        place = original_key = f"{table}:{row.line}"
        if row.fault is not None:
            return RawSample(place, place, table, {}, fault=("source.unreadable", row.fault))
        image, path = _embedded(row.fields.get(self._config.image))
        path = address_key(path) if path is not None and is_remote(path) else path
        fields = {**row.fields, self._config.image: path}
        try:
            beside = self._beside(json.loads(row_text(fields)))
            if image is None:
                raise Reject("member.missing", _PATH_WITHOUT_BYTES if path else "the row holds no image")
            if len(image) > self._limit:
                raise Reject("image.too_large", f"{len(image):,} bytes, as no image within the limits has")
            original_key = self._key(fields) if self._keys else _content_key(path, image, beside["txt"])
            if not original_key:
                raise Reject(*self._no_key(fields))
        except Reject as reject:
            return RawSample(place, original_key or place, table, fields, fault=fault_of(reject))
        return RawSample(place, original_key, table, fields, members={**beside, "image": image})

    def _beside(self, row: dict[str, Any]) -> dict[str, bytes]:
        """The members but the image; Reject."""
        caption, templates = text_of(row.get(self._config.caption)), self._config.templates
        if templates is not None:
            caption = filled(templates, caption.decode(), row_text(row)).encode()
        else:
            row.pop(self._config.caption, None)
        members = {"txt": caption}
        row.pop(self._config.image)
        if row:
            members["json"] = to_json(row)
        return members

    def _key(self, fields: Mapping[str, Any]) -> str:
        """What the key's columns hold; "" when one of them holds nothing."""
        values = [fields.get(name) for name in self._keys]
        if any(map(is_nothing, values)):
            return ""
        return "/".join(address_key(text) if is_remote(text) else text for text in map(str, values))

    def _no_key(self, fields: Mapping[str, Any]) -> tuple[Reason, str]:
        """Why a row has no key. An empty caption is the caption's fault, also as a part of the key."""
        caption = fields.get(self._config.caption)
        if self._config.caption in self._keys and caption == "":
            return "caption.empty", "the caption is empty"
        if self._config.caption in self._keys and is_nothing(caption):
            return "caption.missing", "the row has no caption"
        what = "column" if len(self._keys) == 1 else "one of the columns"
        return "source.unreadable", f"{what} {', '.join(self._keys)} holds no key"


def _embedded(cell: Any) -> tuple[bytes | None, str | None]:
    """Bytes and path of an image's cell: bytes, or Hugging Face's `{bytes, path}`."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    path = cell.get("path") if isinstance(cell, dict) else None
    return (content if isinstance(content, bytes) else None), (path if isinstance(path, str) else None)


def _content_key(path: str | None, image: bytes, text: bytes) -> str:
    """The same wherever the row stands, so that rows put in before it change no key; equal rows share one.

    The path alone would not do: it may repeat (a row a question about an image), and some sets name every
    image alike.
    """
    running = blake2b(image, digest_size=10)
    running.update(len(image).to_bytes(8, "big") + text)
    return f"{stem(path)}-{running.hexdigest()}" if path else running.hexdigest()
