"""A folder of images, the caption of each in a file beside it, or in the name of the folder it lies in.

Listing holds the names of one folder at a time and opens nothing. What is hidden (`.x`, `__MACOSX`) is no
part of the data; every other image and caption file is a sample, or a reject that says what it lacks. So is
an image in a format that is not read, or not stored, unless the same image lies beside it in one that is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from pathlib import PurePath
from posixpath import splitext
from typing import Any

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Dataset
from tasks.core.schema.source import ImageFolderSource
from tasks.core.stores import ABSENT, Stat, Store, Unreachable, is_hidden, open_store
from tasks.dataset.formats import images
from tasks.dataset.keys import key_of
from tasks.dataset.rejects import Reason, Reject
from tasks.dataset.sources.base import Container, Item, read_file, read_start
from tasks.dataset.sources.cells import text_of, to_json
from tasks.dataset.sources.presence import Needed
from tasks.dataset.tar.writer import Members, span_bytes

IMAGES = frozenset(f".{suffix}" for suffix in images.SUFFIXES)
UNREAD = frozenset(f".{suffix}" for suffix in images.UNREAD)
UNSTORABLE = frozenset({".gif", ".bmp", ".tif", ".tiff"})
"""Of formats that are read but that shards do not hold: `encode` has to name one that they do."""
LARGEST_CAPTION = 16 << 20
JSON_GROWTH = 5
"""`1E9` is stored as `1000000000.0`; nothing grows more when it is written anew."""


class ImageFolder:
    """An image a sample."""

    def __init__(self, config: ImageFolderSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        self._suffix = "" if config.captions == "folder" else f".{config.captions}"
        self._limit = images.largest_bytes(dataset.image)
        self._unstorable = UNSTORABLE if dataset.image.encode == "keep" else frozenset()

    @property
    def location(self) -> str:
        return self._store.location

    @property
    def is_sequential(self) -> bool:
        return False

    def columns(self) -> Sequence[str]:
        """`folder`: the first on the way to the image, such as `train`. `label`: the one it lies in."""
        try:
            self._store.entries()
        except Unreachable:
            raise
        except OSError as error:
            raise UsageError(
                f"{self._config_key}.path: there is no folder {self.location}"
                if isinstance(error, FileNotFoundError | NotADirectoryError)
                else f"{self._config_key}.path: {self.location} cannot be listed: {error.strerror}"
            ) from None
        return ["folder", "label"]

    def containers(self) -> Iterator[Container]:
        yield Container(".", Stat(0, ""))

    def items(self, container: Container) -> Iterator[Item]:
        files = (file for file in self._store.files() if not is_hidden(file))
        try:
            for folder, names in groupby(files, key=lambda file: file.rpartition("/")[0]):
                yield from self._pairs(folder, names)
        except Unreachable:
            raise
        except OSError as error:
            raise DataError(
                f"{self.location} could not be listed to its end: {error.strerror or error}; bring it back "
                "and run again, the current version stays as it was"
            ) from None

    def stat(self, file: str) -> Stat:
        """Of image and caption file together: a changed caption is a changed sample."""
        image = self._store.stat(file)
        if not self._suffix or image == ABSENT:
            return image
        caption = self._caption_beside(file)
        return Stat(image.size + max(caption.size, 0), f"{image.stamp} {caption.size} {caption.stamp}")

    def read(self, file: str, content: str) -> Members:
        beside = json.loads(content)
        with Needed(self._store):
            members = self._from_file(beside["file"]) if self._suffix else _from_label(beside)
            return {**members, "image": read_file(self._store, file, self._limit)}

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        if not self._suffix:
            return span_bytes([max(size, 0), len(content), len(content)])
        if self._suffix == ".txt":
            return span_bytes([max(size, 0), 512])
        caption = max(self._caption_beside(file).size, 0)
        return span_bytes([max(size, 0), JSON_GROWTH * caption, 512])

    @cached_property
    def _store(self) -> Store:
        return open_store(self._config.path, f"{self._config_key}.path")

    def _pairs(self, folder: str, files: Iterable[str]) -> Iterator[Item]:
        """A folder's images in the order of their names, then those in formats that are not read, then the
        captions that have none."""
        found: list[str] = []
        unread: list[str] = []
        captions = {}
        for file in files:
            name, suffix = splitext(file)
            suffix = suffix.lower()
            if suffix in IMAGES:
                found.append(file)
            elif suffix in UNREAD:
                unread.append(file)
            elif suffix == self._suffix:
                captions[name] = file
        paired = set(map(_stem, found))
        for image in self._without_twins(found):
            yield self._item(folder, image, captions.get(_stem(image)))
        for image in unread:
            if _stem(image) not in paired:
                what = f"{splitext(image)[1].lower()} is not read; convert it"
                yield _lost(image, folder, ("image.undecodable", what))
        paired |= set(map(_stem, unread))
        for name, caption in captions.items():
            if name not in paired:
                yield _lost(caption, folder, ("member.missing", "no image beside this caption"))

    def _without_twins(self, found: Sequence[str]) -> list[str]:
        """Without those that cannot be stored as they are where the same image lies beside and can."""
        lesser = {image for image in found if splitext(image)[1].lower() in self._unstorable}
        stored = {_stem(image) for image in found if image not in lesser}
        return [image for image in found if image not in lesser or _stem(image) not in stored]

    def _item(self, folder: str, image: str, caption: str | None) -> Item:
        fields = _fields(folder)
        content: dict[str, Any] = {"file": caption}
        fault: tuple[Reason, str] | None = None
        if not self._suffix:
            content = {"label": fields["label"], "caption": self._sentence(image, fields["label"])}
            if not folder:
                fault = ("caption.missing", "lies in no folder that names its class")
        elif caption is None:
            fault = ("caption.missing", f"no {self._suffix} file beside it")
        return Item(image, image, image, fields, "" if fault else json.dumps(content), fault)

    def _sentence(self, image: str, label: str) -> str:
        """The template that the sample draws by its key, filled."""
        drawn = blake2b(key_of(image).encode(), digest_size=8, person=b"tarmac-sentence").digest()
        templates = self._config.templates
        return templates[int.from_bytes(drawn, "big") % len(templates)].replace("{}", label)

    def _caption_beside(self, image: str) -> Stat:
        name = _stem(image)
        spellings = (self._suffix, self._suffix.upper(), self._suffix.capitalize())
        found = (self._store.stat(name + suffix) for suffix in spellings)
        return next((stat for stat in found if stat != ABSENT), ABSENT)

    def _from_file(self, file: str) -> dict[str, bytes]:
        content = self._text(file)
        if self._config.field is None:
            return {"txt": content.encode()}
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError):
            raise Reject("caption.missing", "the caption file is no valid JSON") from None
        if not isinstance(fields, dict):
            raise Reject("caption.missing", "the caption file is no JSON object")
        members = {"txt": text_of(fields.pop(self._config.field, None))}
        return {**members, "json": to_json(fields)} if fields else members

    def _text(self, file: str) -> str:
        content = read_start(self._store, file, LARGEST_CAPTION)
        if len(content) > LARGEST_CAPTION:
            raise Reject("caption.missing", f"the caption file has more than {LARGEST_CAPTION:,} bytes")
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Reject("caption.encoding", f"not UTF-8 at byte {error.start}") from None


def _stem(file: str) -> str:
    return splitext(file)[0]


def _lost(file: str, folder: str, fault: tuple[Reason, str]) -> Item:
    return Item(file, file, file, _fields(folder), "", fault)


def _fields(folder: str) -> dict[str, str]:
    return {"folder": folder.partition("/")[0], "label": PurePath(folder).name.replace("_", " ").strip()}


def _from_label(content: dict[str, str]) -> dict[str, bytes]:
    return {"txt": text_of(content["caption"]), "json": to_json({"label": content["label"]})}
