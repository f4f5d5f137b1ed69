"""Conversations, mostly about images, as Parquet, JSON lines or a JSON array; each file or folder a subset.

Files with the images in them (Parquet, or `data:` URIs) are read once, in order. Where rows hold paths
instead, listing opens no image. `chat_turns` brings the turns of each row into one form. A file that does not
load costs its own rows and a warning, since nanoVLM passes over it too; it is an error when no file loads. A
Parquet file states how many rows it has, so each unreadable row counts as a reject; any other file counts as
one reject, which states that the number of lost rows is unknown. Where the disk or server is at fault and not
the file, the build ends, because the next one may well read it.

A rule of `filter` on a rating works as in nanoVLM: it drops a turn, and the conversation only when no turn is
left. The turns are therefore dropped here, and the general filter checks whether one is left.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Any

from tasks.core.errors import DataError
from tasks.core.schema import ChatSource, Dataset
from tasks.core.stores import StoreUnreachable, absolute_location
from tasks.dataset import filters
from tasks.dataset.formats.images import largest_bytes
from tasks.dataset.modalities import rules_on_fields
from tasks.dataset.modalities.chat import RATINGS, Conversation, check_images, parse, select
from tasks.dataset.sources.chat_turns import DATA_URI, SYSTEM, data_of, holds_data, pair_turns
from tasks.dataset.sources.fields import TableRow, is_nothing, to_json
from tasks.dataset.sources.linked_files import LinkedFiles, require_root, with_root
from tasks.dataset.sources.protocol import Container, RawSample, fault_of
from tasks.dataset.sources.raw_files import Files, SourceCheck
from tasks.dataset.sources.tabular import OpenTable, open_table, require
from tasks.dataset.tar.format import BLOCK, Members, span_bytes
from tasks.dataset.version.rejects import PASSING, Reason, Reject

if TYPE_CHECKING:
    from tasks.core.remote.addresses import AddressFetcher

logger = logging.getLogger(__name__)

SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")
ARRAYS = (".json", ".json.gz")
RATED = {name: f"{name}_ratings" for name in RATINGS}
"""The column with each kind of rating."""
SUBSET = "subset"
PEEKED = 20
"""The first rows of each file that show whether images come as `data:` URIs."""
_NAMES_ARRAYS = re.compile(r"\.json(?![a-z])", re.IGNORECASE)
_SUFFIX = re.compile(r"\.[^./]+(\.gz)?\Z", re.IGNORECASE)


class ChatRows:
    """One sample per row: its images and its turns, with their ratings and all further columns."""

    passed_over: Mapping[str, int] = {}

    def __init__(self, config: ChatSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        arrays = ARRAYS if _NAMES_ARRAYS.search(config.path) else ()  # folders hold many other .json
        self._files = Files(config.path, (*SUFFIXES, *arrays), f"{config_key}.path")
        self._filter = rules_on_fields(dataset)
        self._limit = largest_bytes(dataset.image)
        named = (config.images, config.texts, config.key, dataset.splits.group_column, dataset.splits.column)
        used = {name for name in (*self._filter, *named) if name is not None}
        self._wanted = {RATED.get(name, name) for name in used} - {SUBSET}

    @property
    def location(self) -> str:
        return with_root(absolute_location(self._config.path), self._config.root)

    @property
    def is_sequential(self) -> bool:
        return self._config.images in self._heads[1] or self._has_data

    def columns(self) -> Sequence[str]:
        columns, binary = self._heads
        require_root(self._config.root, f"{self._config_key}.root", self.is_sequential)
        rated = [name for name, column in RATED.items() if column in columns]
        return [SUBSET, *rated, *(name for name in columns if name not in binary)]

    def containers(self) -> Iterator[Container]:
        for file, stat in self._files.stats():
            yield Container(file, stat)

    def stated(self, container: Container) -> int | None:
        try:
            table = self._open(container.name, ())
        except DataError:
            return None  # reading it reports the reason
        table.close()
        return table.count

    def items(self, container: Container) -> Iterator[RawSample]:
        items = self._rows(container.name)
        if self.is_sequential:
            return items
        return self._images.with_stats(
            (item, _images_of(item.file) if item.content else ()) for item in items
        )

    def read(self, file: str, content: str) -> Members:
        with SourceCheck(self._images.store):
            images = [self._images.read(image, self._limit) for image in _images_of(file)]
        return _members(content.encode(), images)

    def announce(self, samples: Sequence[tuple[str, str]], fetcher: AddressFetcher | None) -> None:
        named = (file for file, _ in samples if self._images.is_remote or "://" in file)
        images = [image for file in named for image in _images_of(file)]
        self._images.announce(images, self._limit, fetcher)

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        # An image takes a header and less than a block of padding; the JSON is stored as it is.
        return span_bytes([len(content.encode())]) + max(size, 0) + 2 * BLOCK * len(_images_of(file))

    @cached_property
    def _images(self) -> LinkedFiles:
        return LinkedFiles.of(self._files, self._config.root, self._config_key)

    @cached_property
    def _has_data(self) -> bool:
        """Whether the first rows of a file hold images as `data:` URIs. Faults are left to the listing."""
        cells = [name for name in (self._config.images, self._config.texts) if name is not None]
        for file in self._files.names:
            with suppress(DataError):
                table = self._open(file, self._wanted)
                rows = islice(table.rows, PEEKED)
                found = any(holds_data([row.fields.get(name) for name in cells]) for row in rows)
                table.close()
                if found:
                    return True
        return False

    @cached_property
    def _heads(self) -> tuple[list[str], set[str]]:
        """The columns of all files, and which of them hold bytes."""
        columns: dict[str, None] = {}
        binary: set[str] = set()
        faults = []
        for file in self._files.names:
            try:
                table = self._open(file, self._wanted)
            except StoreUnreachable:
                raise
            except DataError as error:
                faults.append(str(error))
                continue
            table.close()
            columns |= dict.fromkeys(table.columns)
            binary |= table.binary
        if faults and not columns:
            raise DataError(
                f"{absolute_location(self._config.path)}: none of its files can be read; {faults[0]}"
            )
        for role in ("images", "texts", "key"):
            name = getattr(self._config, role)
            if name is not None and columns:
                none = " (null if there are none, or the messages hold them)" if role == "images" else ""
                where = absolute_location(self._config.path)
                require(f"{self._config_key}.{role}", name, list(columns), where, none)
        return list(columns), binary

    def _open(self, file: str, wanted: Collection[str] | None) -> OpenTable:
        """Open a file; errors name it as it is named within the source, wherever that lies."""
        key = f"{self._config_key}.path"
        return open_table(self._files.location(file), key, wanted, self._config.images, place=file)

    def _rows(self, file: str) -> Iterator[RawSample]:
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
        except StoreUnreachable:
            raise
        except DataError as error:
            yield from self._lost(file, line, table.count if table is not None else None, error)

    def _require_images(self, file: str, table: OpenTable) -> None:
        """DataError where bytes stand under another name than the images' column; a subset without any is
        one of text alone, which is logged."""
        wanted = self._config.images
        if wanted is None or not table.columns or table.columns_vary or wanted in table.columns:
            return
        if table.binary:
            fix = "give the file as a source of its own with images: its column"
            raise DataError(f"there is no column {wanted!r} but one of bytes, {min(table.binary)!r}; {fix}")
        place = f"{self._config_key}: {file}"
        logger.warning("%s: has no column %r: its rows are taken as text alone", place, wanted)

    def _lost(self, file: str, read: int, count: int | None, error: DataError) -> Iterator[RawSample]:
        """Yield faults for the rows after the first `read`: up to `count`, or one for an unknown number."""
        fault: tuple[Reason, str] = ("source.unreadable", str(error))
        place = f"{self._config_key}: {file}"
        if count is None:
            logger.warning("%s is left out: %s", place, error)
            name = _SUFFIX.sub("", file)
            yield RawSample(name, name, file, {}, fault=fault, more_lost=True)
            return
        logger.warning("%s: %s of %s rows are left out: %s", place, count - read, count, error)
        for row in (f"{file}:{number}" for number in range(read + 1, count + 1)):
            yield RawSample(row, row, "", {}, fault=fault)

    def _item(self, file: str, row: TableRow) -> RawSample:
        place = f"{file}:{row.line}"
        if row.fault is not None:
            return RawSample(place, place, "", {}, fault=("source.unreadable", row.fault))
        facts = self._facts(_subset_of(file), row.fields)
        item = RawSample(place, place, file if self.is_sequential else "", facts)
        rules, folder = self._filter, file.rpartition("/")[0]
        try:
            told = pair_turns(row.fields.get(self._config.texts))
            images = self._images_in(row.fields, told.images)
            item = item._replace(original_key=self._key(row.fields, facts[SUBSET], images))
            ratings = {name: row.fields.get(column) for name, column in RATED.items()}
            conversation = parse(told.pairs, ratings)
            check_images(conversation, len(images))
            left = select(
                conversation, lambda name, rating: name not in rules or filters.meets(rules[name], rating)
            )
            fields = facts | _ratings(left, rules, facts)
            document = b""
            if left is not None:
                system = {SYSTEM: told.system} if told.system else {}
                document = to_json(facts | system | {"messages": left.turns, "ratings": left.ratings})
            images = [self._images.name(one, folder) if isinstance(one, str) else one for one in images]
            if not self.is_sequential:
                paths = _joined([one for one in images if isinstance(one, str)])
                return item._replace(fields=fields, file=paths, content=document.decode())
        except Reject as reject:
            return item._replace(fault=fault_of(reject))
        item = item._replace(fields=fields)
        if not filters.passes(rules, fields):
            return item
        contents = (self._images.read(one, self._limit) if isinstance(one, str) else one for one in images)
        try:
            return item._replace(members=_members(document, contents))
        except Reject as reject:
            return item._replace(fault=fault_of(reject), may_pass=reject.reason in PASSING)

    def _images_in(self, row: Mapping[str, Any], within: Sequence[Any]) -> list[bytes | str]:
        """Return bytes or path of each of a row's images: those of its column, or those within its
        messages."""
        column = None if self._config.images is None else row.get(self._config.images)
        if within and column:
            both = f"there are images in the messages and in column {self._config.images}"
            raise Reject("chat.images", f"{both}: remove one of them, or set images: null")
        found = _images(list(within) or column)
        if not self.is_sequential and any(isinstance(one, bytes) for one in found):
            fix = "give such rows a source of their own"
            raise Reject("chat.images", f"a data: URI, where the first rows of the source hold paths: {fix}")
        return found

    def _facts(self, subset: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return all columns other than those of images, turns and ratings, as JSON represents them."""
        taken = {self._config.images, self._config.texts, *RATED.values()}
        further = {name: value for name, value in row.items() if name not in taken}
        return {SUBSET: subset, **json.loads(json.dumps(further, default=str))}

    def _key(self, row: Mapping[str, Any], subset: str, images: Sequence[bytes | str]) -> str:
        """Return the key's column, else a digest of texts and images, which ignores the row's place."""
        if self._config.key is not None:
            value = row.get(self._config.key)
            if is_nothing(value):
                raise Reject("source.unreadable", f"column {self._config.key} holds no key")
            return f"{subset}/{value}"
        texts = json.dumps(row.get(self._config.texts), sort_keys=True, default=str)
        running = blake2b(texts.encode(), digest_size=16)
        for image in images:
            content = image if isinstance(image, bytes) else image.encode("utf-8", "surrogatepass")
            running.update(len(content).to_bytes(8, "big"))
            running.update(content)
        return f"{subset}-{running.hexdigest()}"


def _subset_of(file: str) -> str:
    """Return the first folder that the file lies in, or its own name."""
    folder, slash, _ = file.partition("/")
    return folder if slash else _SUFFIX.sub("", file)


def _joined(images: Sequence[str]) -> str:
    """Return the images' paths as one text: a list in JSON, unless there is one path alone."""
    if len(images) == 1 and images[0][0] != "[":
        return images[0]
    return json.dumps(images) if images else ""


def _images_of(file: str) -> list[str]:
    """Return the paths that `_joined` joined."""
    if file.startswith("["):
        return [str(image) for image in json.loads(file)]
    return [file] if file else []


def _members(document: bytes, images: Iterable[bytes]) -> Members:
    return {"json": document} | {f"{number:03d}": image for number, image in enumerate(images)}


def _images(value: Any) -> list[bytes | str]:
    """Return bytes or path of each image in a cell; Reject for anything else."""
    found: list[bytes | str] = []
    entries = value if isinstance(value, list) else [] if value is None else [value]
    for number, entry in enumerate(entries, 1):
        image = (entry.get("bytes") or entry.get("path")) if isinstance(entry, dict) else entry
        if not isinstance(image, bytes | str) or image == "":
            raise Reject("chat.images", f"image {number} is neither bytes nor a path")
        if isinstance(image, str):
            image = data_of(image) if image.startswith(DATA_URI) else image.removeprefix("file://")
        found.append(image)
    return found


def _ratings(left: Conversation | None, rules: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a conversation's ratings for the general filter: the lowest of the remaining turns.

    The remaining turns have met the rules, so the lowest rating does too. Without a remaining turn there is
    no rating, which meets no rule. Turns without a rating are kept, so the value that the rule requires
    stands for theirs. A column with a rating's name rates the whole conversation, unless its turns are rated.
    """
    if left is None:
        return dict.fromkeys(name for name in RATINGS if name in rules)
    lowest: dict[str, Any] = {}
    for name in RATINGS:
        rated = [rating for rating in left.ratings.get(name, ()) if rating is not None]
        if rated:
            lowest[name] = min(rated)
        elif name in rules and name not in facts:
            rule = rules[name]
            lowest[name] = rule[0] if isinstance(rule, list) and rule else rule
    return lowest
