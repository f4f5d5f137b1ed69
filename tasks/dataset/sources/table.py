"""Images and captions in tables: CSV, TSV, JSON lines or Parquet, with the images as paths or as bytes.

An image with a path is read when its sample is needed; a table of bytes is read once, in its own order.

An address may hold a signature or a password. Only an item's `content`, which no page shows, holds the whole
address; everywhere else, including keys, it is cut (`tasks.core.stores.address_key`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

from tasks.core.errors import DataError, UsageError
from tasks.core.patterns import base_folder
from tasks.core.schema import Dataset, TableSource
from tasks.core.schema.source import NAMED_TABLES, TABLES
from tasks.core.stores import ObjectStat, address_key, is_remote, unsigned, without_query
from tasks.dataset.filters import passes
from tasks.dataset.formats.images import largest_bytes
from tasks.dataset.keys import stem
from tasks.dataset.modalities import rules_on_fields
from tasks.dataset.sources.fields import WINDOWS, TableRow, filled, is_nothing, row_text, text_of, to_json
from tasks.dataset.sources.linked_files import LinkedFiles, require_root, with_root
from tasks.dataset.sources.protocol import Container, RawSample, fault_of
from tasks.dataset.sources.raw_files import Files, SourceCheck
from tasks.dataset.sources.shared_images import JoinedRow, RowJoiner, captions_in
from tasks.dataset.sources.tabular import OpenTable, TextForm, open_table, require
from tasks.dataset.tar.format import Members, span_bytes
from tasks.dataset.version.layout import CAPTIONS
from tasks.dataset.version.rejects import Reason, Reject

if TYPE_CHECKING:
    from tasks.core.remote.addresses import AddressFetcher

PATH_ALONE = "the row names a path but holds no bytes; embed the images, or give paths as a column of text"


class TableImages:
    """One sample per row, or per image with `captions: all`. The row without image and caption becomes the
    `json` member."""

    passed_over: Mapping[str, int] = {}

    def __init__(self, config: TableSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        is_named = without_query(config.path).lower().endswith(NAMED_TABLES)
        self._files = Files(config.path, NAMED_TABLES if is_named else TABLES, f"{config_key}.path")
        self._form = TextForm(config.delimiter, config.encoding)
        given = f" (it is read as {config.encoding})"
        self._fix = given if config.encoding else f"; if {WINDOWS}, give its source encoding: cp1252"
        self._rules = dataset.filter
        self._limit = largest_bytes(dataset.image)
        self._keys = [config.key] if isinstance(config.key, str) else config.key or []
        roles = {"image": [config.image], "caption": [config.caption], "key": self._keys}
        self._asked = [(f"{config_key}.{role}", name) for role, names in roles.items() for name in names]
        splits = {"group_by": dataset.splits.group_column, "from": dataset.splits.column}
        self._asked += [(f"dataset.splits.{key}", name) for key, name in splits.items() if name is not None]
        self._wanted = {*rules_on_fields(dataset), *(name for _, name in self._asked)}
        self._joiner: RowJoiner | None = None
        if config.captions == "all":
            same = [name for name in splits.values() if name is not None]
            self._joiner = RowJoiner(config.image, config.caption, self._is_wanted, same)
        self._unread: tuple[OpenTable, ObjectStat] | None = None

    @cached_property
    def _filter(self) -> Mapping[str, Any]:
        """The rules on columns; others are on what the build measures."""
        named = self._wanted | set(self._first.columns)
        return {name: rule for name, rule in self._rules.items() if name in named}

    def _is_wanted(self, fields: Mapping[str, Any]) -> bool:
        return passes(self._filter, fields)

    @cached_property
    def location(self) -> str:
        return with_root(base_folder(self._config.path), self._config.root)

    @property
    def is_sequential(self) -> bool:
        return self._config.image in self._first.binary

    def columns(self) -> Sequence[str]:
        """Return the first table's columns; for JSON lines also those of others, while one is missing."""
        columns = dict.fromkeys(self._first.columns)
        tables = islice(self._files.names if self._first.columns_vary else (), 1, None)
        while not self._wanted <= columns.keys() and (name := next(tables, None)) is not None:
            table = self._open(name)
            table.close()
            columns.update(dict.fromkeys(table.columns))
        for key, name in self._asked:
            require(key, name, list(columns), self._first.name)
        if self._joiner is not None and CAPTIONS in columns and self._config.caption != CAPTIONS:
            taken = f"lists the captions in the json's field {CAPTIONS}, which is also a column; rename that"
            raise UsageError(f"{self._config_key}.captions: all {taken}")
        require_root(self._config.root, f"{self._config_key}.root", self.is_sequential)
        return list(columns)

    def containers(self) -> Iterator[Container]:
        for name, stat in self._files.stats():
            yield Container(name, stat)

    def stated(self, container: Container) -> int | None:
        table = self._open(container.name)
        table.close()
        return table.count

    def items(self, container: Container) -> Iterator[RawSample]:
        name = container.name
        table = self._opened(name, container.stat)
        self._require_sameness(table)
        if self.is_sequential:
            yield from (self._item_of_bytes(name, *row) for row in self._joined(table, name))
        else:
            rows = self._joined(table, name)
            yield from self._images.with_stats(self._item_of_path(name, *row) for row in rows)
        if self._files.stat(name) != container.stat:
            raise DataError(f"{table.location} has changed while it was read; run again")

    def read(self, file: str, content: str) -> Members:
        row = json.loads(content)
        written = row[self._config.image]
        with SourceCheck(self._images.store):
            beside = self._beside(row)
            image = self._images.read(written if is_remote(written) else file, self._limit)
        return {**beside, "image": image}

    def announce(self, samples: Sequence[tuple[str, str]], fetcher: AddressFetcher | None) -> None:
        rows = (content for _, content in samples if self._images.is_remote or "://" in content)
        written = (json.loads(content)[self._config.image] for content in rows)
        self._images.announce(written, self._limit, fetcher)

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        # The row as ASCII JSON is at least as long as the caption and the rest of the row in UTF-8.
        again = 0 if self._joiner is None else len(content)  # the first of all captions is stored twice
        return span_bytes([max(size, 0), len(content), again, 512])

    @cached_property
    def _images(self) -> LinkedFiles:
        return LinkedFiles.of(self._files, self._config.root, self._config_key)

    @cached_property
    def _first(self) -> OpenTable:
        """The first table, opened for its columns. It stays open for the listing that follows."""
        name = self._files.names[0]
        stat = self._files.stat(name)
        table = self._open(name)
        self._unread = table, stat
        return table

    def _open(self, name: str) -> OpenTable:
        location = self._files.location(name)
        key, form = f"{self._config_key}.path", self._form
        table = open_table(location, key, self._wanted, self._config.image, form=form)
        fields = self._fields_of(name, table)
        if not fields:
            return table
        rows = (row._replace(fields={**row.fields, **fields}) for row in table.rows)
        return replace(table, columns=[*table.columns, *fields], rows=rows)

    def _fields_of(self, name: str, table: OpenTable) -> dict[str, str]:
        """Return the fields that the table's path gives to its rows; UsageError where a pattern fails."""
        found = {}
        for field, pattern in self._config.fields.items():
            key = f"{self._config_key}.fields.{field}"
            match = re.search(pattern, name)
            if match is None or match[1] is None:
                fix = "leave it out of path, or mend it"
                raise UsageError(f"{key}: {pattern!r} does not fit {table.location}; {fix}")
            if field in table.columns:
                raise UsageError(f"{key}: {table.location} has a column {field!r} itself; rename the field")
            found[field] = match[1]
        return found

    def _opened(self, name: str, stat: ObjectStat) -> OpenTable:
        """Open a table whose rows are yet to be read; the first one only once unless it has changed."""
        if name == self._files.names[0] and self._unread is not None:
            (table, first_stat), self._unread = self._unread, None
            if stat == first_stat:
                return table
            table.close()
        return self._open(name)

    def _require_sameness(self, table: OpenTable) -> None:
        """DataError or UsageError for a table that lacks a column of the others: its samples would quietly
        lack the values."""
        if (self._config.image in table.binary) != self.is_sequential:
            mixed = "holds paths in some tables and bytes in others; give them as two sources"
            raise DataError(f"{table.location}: column {self._config.image!r} {mixed}")
        for key, name in () if table.columns_vary else self._asked:
            require(key, name, table.columns, table.name)

    def _joined(self, table: OpenTable, name: str) -> Iterator[JoinedRow]:
        """Yield a table's rows, those of one image joined where the config wants that."""
        rows = table.rows
        if not self.is_sequential:
            rows = self._images.decided(rows, lambda row: self._name(name, row.fields))
        if self._joiner is None:
            return (JoinedRow(row, row.fields) for row in rows)
        if self.is_sequential:
            return self._joiner.side_by_side(
                rows, lambda row: _embedded(row.fields.get(self._config.image))[0]
            )
        return self._joiner.by_name(rows, lambda row: self._name(name, row.fields))

    def _name(self, table: str, fields: Mapping[str, Any]) -> str:
        """Return the name of a row's image; "" where it has none."""
        written = fields.get(self._config.image)
        if not isinstance(written, str) or not written:
            return ""
        return self._images.name(written, table.rpartition("/")[0])

    def _item_of_path(
        self, table: str, row: TableRow, known: Mapping[str, Any]
    ) -> tuple[RawSample, Sequence[str] | None]:
        """Return the row's sample, with its fields as far as they are `known` by one value, and its image's
        name; None in its place where nothing is to be looked at, as for rows that the filter leaves out."""
        place, fields = f"{table}:{row.line}", row.fields
        if row.fault is not None:
            return RawSample(place, place, "", {}, fault=("source.unreadable", row.fault)), None
        name = self._name(table, fields)
        if not name:  # also where the row names the source's folder
            fault: tuple[Reason, str] = "member.missing", "the row names no image"
            return RawSample(place, place, "", known, fault=fault), None
        file, is_wanted = self._images.public_name(name), self._is_wanted(known)
        if file != name:
            address = {self._config.image: self._images.address(name)}
            fields, known = {**fields, **address}, {**known, **address}
        original_key = self._key(known) if self._keys else file
        if not original_key:
            return RawSample(place, place, file, known, fault=self._no_key(known)), None
        return RawSample(place, original_key, file, known, row_text(fields)), [name] if is_wanted else None

    def _item_of_bytes(self, table: str, row: TableRow, known: Mapping[str, Any]) -> RawSample:
        place = original_key = f"{table}:{row.line}"
        if row.fault is not None:
            return RawSample(place, place, table, {}, fault=("source.unreadable", row.fault))
        image, path = _embedded(row.fields.get(self._config.image))
        path = address_key(path) if path is not None and is_remote(path) else path
        fields, known = ({**one, self._config.image: path} for one in (row.fields, known))
        try:
            beside = self._beside(json.loads(row_text(fields)))
            if image is None:
                raise Reject("member.missing", PATH_ALONE if path else "the row holds no image")
            if len(image) > self._limit:
                raise Reject("image.too_large", f"{len(image):,} bytes, as no image within the limits has")
            text = beside["txt"] if self._joiner is None else b""
            original_key = self._key(known) if self._keys else _content_key(path, image, text)
            if not original_key:
                raise Reject(*self._no_key(known))
        except Reject as reject:
            return RawSample(place, original_key or place, table, known, fault=fault_of(reject))
        return RawSample(place, original_key, table, known, members={**beside, "image": image})

    def _beside(self, row: dict[str, Any]) -> dict[str, bytes]:
        """Return the members other than the image; Reject."""
        if self._joiner is not None:
            texts = captions_in(row.get(self._config.caption), self._fix)
            further = {key: row[key] for key in row if key not in (self._config.image, self._config.caption)}
            return {
                "txt": texts[0].encode(),
                "json": to_json({**_unsigned(further), CAPTIONS: texts}, self._fix),
            }
        caption, templates = text_of(row.get(self._config.caption), self._fix), self._config.templates
        if templates is not None:
            caption = filled(templates, caption.decode(), row_text(row)).encode()
        else:
            row.pop(self._config.caption, None)
        members = {"txt": caption}
        row.pop(self._config.image)
        if row:
            members["json"] = to_json(_unsigned(row), self._fix)
        return members

    def _key(self, fields: Mapping[str, Any]) -> str:
        """Return the values of the key's columns; "" when one of them is empty."""
        values = [fields.get(name) for name in self._keys]
        if any(map(is_nothing, values)):
            return ""
        return "/".join(address_key(text) if is_remote(text) else text for text in map(str, values))

    def _no_key(self, fields: Mapping[str, Any]) -> tuple[Reason, str]:
        """Return why a row has no key. An empty caption is the caption's fault, also as part of the key."""
        caption = fields.get(self._config.caption)
        if self._config.caption in self._keys and is_nothing(caption):
            if caption == "":
                return "caption.empty", "the caption is empty"
            return "caption.missing", "the row has no caption"
        what = "column" if len(self._keys) == 1 else "one of the columns"
        return "source.unreadable", f"{what} {', '.join(self._keys)} holds no key"


def _embedded(cell: Any) -> tuple[bytes | None, str | None]:
    """Return bytes and path of an image's cell, which is bytes or Hugging Face's `{bytes, path}`."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    path = cell.get("path") if isinstance(cell, dict) else None
    return (content if isinstance(content, bytes) else None), (path if isinstance(path, str) else None)


def _content_key(path: str | None, image: bytes, text: bytes) -> str:
    """Return a key that does not depend on the row's place, so that rows inserted before it change no key;
    equal rows share one.

    The path alone would not do: it may repeat (one row per question about an image), and some sets give every
    image the same name.
    """
    running = blake2b(image, digest_size=10)
    running.update(len(image).to_bytes(8, "big") + text)
    return f"{stem(path)}-{running.hexdigest()}" if path else running.hexdigest()


def _unsigned(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's further fields as they are stored, without the signatures of their addresses."""

    def cut(value: Any) -> Any:
        if isinstance(value, list):
            return [cut(one) for one in value]
        return unsigned(value) if isinstance(value, str) else value

    return {name: cut(value) for name, value in row.items()}
