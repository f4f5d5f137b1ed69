"""Conversations about images in nanoVLM's row format, as Parquet or JSON lines; one file or folder a subset.

Parquet with images in it is read once, in order. Where rows hold paths instead, listing opens no image.
A file that does not load costs its own rows and a warning, as nanoVLM passes over it; that none loads is an
error. Parquet tells how many rows it has, so each that cannot be read counts as a reject; of a file of which
nothing is known the one reject is all that can be told. Where not the file but its disk or server is to blame
the build ends, because the next one may well read it.

A rule of `filter` on a rating is nanoVLM's: it drops a turn, and a conversation only when no turn is left.
The turns are hence dropped here, and what the general filter sees is whether one is left.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from tasks.core.errors import DataError
from tasks.core.patterns import base_folder, expand
from tasks.core.schema import ChatSource, Dataset
from tasks.core.stores import ABSENT, Stat, Store, Unreachable, absolute_location, join_location, open_store
from tasks.dataset import filters
from tasks.dataset.formats.images import largest_bytes
from tasks.dataset.rejects import TRANSIENT, Reason, Reject
from tasks.dataset.sources.base import Container, Item
from tasks.dataset.sources.chat_row import RATED, SUBSET, interpret
from tasks.dataset.sources.columns import require
from tasks.dataset.sources.located import Located
from tasks.dataset.sources.presence import Needed
from tasks.dataset.sources.tabular import Row, Table, open_table
from tasks.dataset.tar.writer import BLOCK, Members, span_bytes

logger = logging.getLogger(__name__)

SUFFIXES = (".parquet", ".jsonl", ".ndjson")
AT_ONCE = 256
"""Rows whose images are asked for together, where each costs a turn of the network."""


@dataclass(frozen=True)
class _Head:
    """What the heads of all files tell."""

    columns: Sequence[str]
    holds_images: bool


class ChatRows:
    """A row a sample: its images and its turns, with their ratings and all further columns."""

    def __init__(self, config: ChatSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        self._filter = dataset.filter
        self._limit = largest_bytes(dataset.image)
        named = (config.images, config.texts, config.key, dataset.splits.group_by, dataset.splits.column)
        used = {name for name in (*dataset.filter, *named) if name is not None}
        self._wanted = {RATED.get(name, name) for name in used} - {SUBSET}

    @property
    def location(self) -> str:
        return absolute_location(self._config.path)

    @property
    def is_sequential(self) -> bool:
        return self._head.holds_images

    def columns(self) -> Sequence[str]:
        return self._head.columns

    def containers(self) -> Iterator[Container]:
        for file in self._files:
            yield Container(file, self._store.stat(file))

    def items(self, container: Container) -> Iterator[Item]:
        items = self._rows(container.name)
        if self.is_sequential:
            yield from items
            return
        while some := list(islice(items, AT_ONCE)):
            self._images.look_ahead([image for item in some for image in _images_of(item.file)])
            yield from some

    def stat(self, file: str) -> Stat:
        found = [self._images.stat(image) for image in _images_of(file)]
        if ABSENT in found:
            return ABSENT
        return Stat(sum(stat.size for stat in found), " ".join(stat.stamp for stat in found))

    def read(self, file: str, content: str) -> Members:
        with Needed(self._store):
            images = [self._images.read(image, self._limit) for image in _images_of(file)]
        return _members(content.encode(), images)

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        # An image takes a header and less than a block of padding; the JSON is stored as it is.
        return span_bytes([len(content.encode())]) + max(size, 0) + 2 * BLOCK * len(_images_of(file))

    @cached_property
    def _store(self) -> Store:
        return open_store(base_folder(self._config.path), f"{self._config_key}.path")

    @cached_property
    def _images(self) -> Located:
        return Located(self._store, f"{self._config_key}.path")

    @cached_property
    def _files(self) -> Sequence[str]:
        """Relative to the store."""
        found = expand(self._config.path, SUFFIXES, f"{self._config_key}.path")
        return [file.removeprefix(f"{self._store.location.rstrip('/')}/") for file in found]

    @cached_property
    def _head(self) -> _Head:
        columns: dict[str, None] = {}
        binary: set[str] = set()
        faults = []
        for file in self._files:
            try:
                table = self._open(file, self._wanted)
            except Unreachable:
                raise
            except DataError as error:
                faults.append(f"{file}: {self._why(file, error)}")
                continue
            columns |= dict.fromkeys(table.columns)
            binary |= table.binary
        if faults and not columns:
            raise DataError(f"{self.location}: none of its files can be read; {faults[0]}")
        for role in ("images", "texts", "key"):
            name = getattr(self._config, role)
            if name is not None and columns:
                require(f"{self._config_key}.{role}", name, list(columns), self.location)
        rated = [name for name, column in RATED.items() if column in columns]
        readable = [name for name in columns if name not in binary]
        return _Head([SUBSET, *rated, *readable], self._config.images in binary)

    def _open(self, file: str, wanted: Collection[str]) -> Table:
        location = join_location(self._store.location, file)
        return open_table(location, f"{self._config_key}.path", wanted, self._config.images)

    def _why(self, file: str, error: Exception) -> str:
        """The error, the same wherever the source lies."""
        return str(error).replace(join_location(self._store.location, file), file)

    def _rows(self, file: str) -> Iterator[Item]:
        table, line = None, 0
        try:
            is_parquet = file.lower().endswith(".parquet")
            table = self._open(file, self._wanted if is_parquet else ())  # lines are not read over twice
            if table.columns and self._config.texts not in table.columns:
                raise DataError(f"there is no column {self._config.texts!r}")
            self._require_images(file, table)
            for row in table.rows:
                line = row.line
                yield self._item(file, row)
        except Unreachable:
            raise
        except DataError as error:
            yield from self._lost(file, line, table.count if table is not None else None, error)

    def _require_images(self, file: str, table: Table) -> None:
        """A subset without the images' column is one of text alone, unless it holds bytes by another name."""
        wanted = self._config.images
        if wanted is None or not table.columns or table.columns_vary or wanted in table.columns:
            return
        if table.binary:
            raise DataError(
                f"there is no column {wanted!r} but one of bytes, {min(table.binary)!r}; give the file as a "
                "source of its own with images: its column"
            )
        logger.warning(
            "%s: %s: has no column %r: its rows are taken as text alone", self._config_key, file, wanted
        )

    def _lost(self, file: str, read: int, count: int | None, error: DataError) -> Iterator[Item]:
        """What became of the rows after the first `read`, of `count` or nobody knows how many."""
        why = self._why(file, error)
        fault: tuple[Reason, str] = ("source.unreadable", why)
        if count is None:
            logger.warning("%s: %s is left out: %s", self._config_key, file, why)
            name = file.rpartition(".")[0]
            yield Item(name, name, file, {}, "", fault)
            return
        logger.warning(
            "%s: %s: %s of %s rows are left out: %s", self._config_key, file, count - read, count, why
        )
        for place in (f"{file}:{row}" for row in range(read + 1, count + 1)):
            yield Item(place, place, "", {}, "", fault)

    def _item(self, file: str, row: Row) -> Item:
        place = f"{file}:{row.line}"
        if row.fault is not None:
            return Item(place, place, "", {}, "", ("source.unreadable", row.fault))
        sample = interpret(row.fields, _subset_of(file), self._config, self._filter)
        key = sample.original_key or place
        folder = file.rpartition("/")[0]
        images = [self._images.name(one, folder) if isinstance(one, str) else one for one in sample.images]
        named = file if self.is_sequential else _joined([one for one in images if isinstance(one, str)])
        if sample.fault is not None or not filters.passes(self._filter, sample.fields):
            return Item(place, key, named, sample.fields, "", sample.fault)
        if not self.is_sequential:
            return Item(place, key, named, sample.fields, sample.document.decode())
        try:
            members = _members(sample.document, [self._bytes(image) for image in images])
        except Reject as reject:
            fault, may_pass = (reject.reason, reject.detail), reject.reason == TRANSIENT
            return Item(place, key, named, sample.fields, "", fault, may_pass=may_pass)
        return Item(place, key, named, sample.fields, "", members=members)

    def _bytes(self, image: bytes | str) -> bytes:
        return self._images.read(image, self._limit) if isinstance(image, str) else image


def _subset_of(file: str) -> str:
    """The first folder that the file lies in, or its own name."""
    folder, slash, _ = file.partition("/")
    return folder if slash else file.rpartition(".")[0]


def _joined(images: Sequence[str]) -> str:
    """The images' paths as one: a list in JSON, unless it is one path alone."""
    if not images:
        return ""
    return images[0] if len(images) == 1 and images[0][0] != "[" else json.dumps(images)


def _images_of(file: str) -> list[str]:
    """What `_joined` joined."""
    if file.startswith("["):
        return [str(image) for image in json.loads(file)]
    return [file] if file else []


def _members(document: bytes, images: Sequence[bytes]) -> Members:
    return {"json": document} | {f"{number:03d}": image for number, image in enumerate(images)}
