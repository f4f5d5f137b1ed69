"""A folder of images, the caption of each in a file beside it, or in the name of the folder it lies in.

Listing holds the names of one folder at a time and opens nothing. What is hidden (`.x`, `__MACOSX`) is no
part of the data; every other image and caption file is a sample, or a reject that says what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import groupby
from pathlib import PurePath, PurePosixPath
from typing import Any

from tasks.core.errors import DataError, UsageError
from tasks.core.patterns import is_hidden
from tasks.core.schema import Dataset
from tasks.core.schema.source import ImageFolderSource
from tasks.core.stores import ABSENT, Stat, Store, Unreachable, is_remote, open_store
from tasks.dataset.keys import key_of
from tasks.dataset.reasons import Reason, Reject
from tasks.dataset.sources.reading.cells import text_of, to_json
from tasks.dataset.sources.source import Container, Item, open_file, read_file, unreadable
from tasks.dataset.sources.table import BYTES_PER_PIXEL, SLACK
from tasks.dataset.tar import Members, span_bytes

IMAGES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
LARGEST_CAPTION = 16 << 20
JSON_GROWTH = 5
"""`1E9` is stored as `1000000000.0`; nothing grows more when it is written anew."""


class ImageFolder:
    """An image a sample."""

    def __init__(self, config: ImageFolderSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        self._suffix = "" if config.captions == "folder" else f".{config.captions}"
        self._limit = dataset.image.max_pixels * BYTES_PER_PIXEL + SLACK

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
        try:
            members = self._from_file(beside["file"]) if self._suffix else _from_label(beside)
            return {**members, "image": read_file(self._store, file, self._limit)}
        except Reject as reject:
            if reject.reason in ("member.missing", "source.unreadable") and not self._is_there():
                raise DataError(
                    f"{self.location} is not there any more (removed, or not mounted); bring it back and run "
                    "again, the current version stays as it was"
                ) from None
            raise

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
        """A folder's images in the order of their names, then the captions that have none."""
        images, captions = [], {}
        for file in files:
            suffix = PurePosixPath(file).suffix.lower()
            if suffix in IMAGES:
                images.append(file)
            elif suffix == self._suffix:
                captions[file[: -len(suffix)]] = file
        paired = set()
        for image in images:
            name = image[: -len(PurePosixPath(image).suffix)]
            paired.add(name)
            yield self._item(folder, image, captions.get(name))
        for name, caption in captions.items():
            if name not in paired:
                fault: tuple[Reason, str] = ("member.missing", "no image beside this caption")
                yield Item(caption, caption, caption, _fields(folder), "", fault)

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
        name = image[: -len(PurePosixPath(image).suffix)]
        spellings = (self._suffix, self._suffix.upper(), self._suffix.capitalize())
        found = (self._store.stat(name + suffix) for suffix in spellings)
        return next((stat for stat in found if stat != ABSENT), ABSENT)

    def _from_file(self, file: str) -> dict[str, bytes]:
        content = self._text(file)
        if self._config.field is None:
            return {"txt": content.strip().encode()}
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError):
            raise Reject("caption.missing", "the caption file is no valid JSON") from None
        if not isinstance(fields, dict):
            raise Reject("caption.missing", "the caption file is no JSON object")
        members = {"txt": text_of(fields.pop(self._config.field, None)).strip()}
        return {**members, "json": to_json(fields)} if fields else members

    def _text(self, file: str) -> str:
        with open_file(self._store, file) as opened:
            try:
                content = opened.read(LARGEST_CAPTION + 1)
            except OSError as error:
                raise unreadable(error) from None
        if len(content) > LARGEST_CAPTION:
            raise Reject("caption.missing", f"the caption file has more than {LARGEST_CAPTION:,} bytes")
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Reject("caption.encoding", f"not UTF-8 at byte {error.start}") from None

    def _is_there(self) -> bool:
        """A folder that is not mounted is often there, and empty. A remote one says so by itself."""
        try:
            return is_remote(self.location) or any(self._store.entries())
        except OSError:
            return False


def _fields(folder: str) -> dict[str, str]:
    return {"folder": folder.partition("/")[0], "label": PurePath(folder).name.replace("_", " ").strip()}


def _from_label(content: dict[str, str]) -> dict[str, bytes]:
    return {"txt": text_of(content["caption"]), "json": to_json({"label": content["label"]})}
