"""A folder of images, with the caption of each in a file beside it, or in the name of the folder it lies in.

Listing holds the names of one folder at a time and opens no file, so an image without a suffix is not
recognised. Hidden files and those of a system (`.x`, `__MACOSX`, `@eaDir`) are no part of the data; pictures
among them are counted. Every other image and caption file is a sample, or a reject that states what it lacks
or that its format is not read or not stored (unless the same image lies beside it in one that is). All other
files count as passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import PurePath
from posixpath import splitext
from typing import TYPE_CHECKING, Any

from tasks.core.schema import Dataset
from tasks.core.schema.source import ImageFolderSource
from tasks.core.stores import ABSENT, ObjectStat, is_remote
from tasks.dataset.formats import images
from tasks.dataset.formats.checks import json_object
from tasks.dataset.keys import key_of
from tasks.dataset.sources.fields import RECODE, filled, text_of, to_json
from tasks.dataset.sources.protocol import Container, RawSample
from tasks.dataset.sources.raw_files import RawFolder, SourceCheck, read_file, read_start, require_fetched
from tasks.dataset.tar.format import Members, span_bytes
from tasks.dataset.version.rejects import Reason, Reject

if TYPE_CHECKING:
    from tasks.core.remote.addresses import AddressFetcher

IMAGES = frozenset(f".{suffix}" for suffix in images.SUFFIXES)
UNREAD = frozenset(f".{suffix}" for suffix in images.UNREAD)
HEIC = frozenset(f".{suffix}" for suffix in images.HEIC)
UNSTORABLE = HEIC | {".avif", ".gif", ".bmp", ".tif", ".tiff"}
"""Formats that are read but that shards do not hold: `encode` has to name one that they do."""
LARGEST_CAPTION = 16 << 20
JSON_GROWTH = 5
"""`1E9` is stored as `1000000000.0`; nothing grows by more when it is written again."""


class ImageFolder:
    """One sample per image."""

    is_sequential = False

    def __init__(self, config: ImageFolderSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._folder = RawFolder(config.path, f"{config_key}.path")
        self._suffix = "" if config.captions == "folder" else f".{config.captions}"
        self._looked_at = (IMAGES | UNREAD | {self._suffix}) - {""}
        self._limit = images.largest_bytes(dataset.image)
        # A phone's HEIC gives way to the JPEG of it in any case, so that neither is a duplicate.
        self._lesser = UNSTORABLE if dataset.image.encode == "keep" else HEIC

    @property
    def location(self) -> str:
        return self._folder.store.location

    @property
    def passed_over(self) -> Mapping[str, int]:
        return self._folder.passed_over

    def columns(self) -> Sequence[str]:
        """`folder`: the first on the way to the image, such as `train`. `label`: the one it lies in."""
        self._folder.require()
        return ["folder", "label"]

    def containers(self) -> Iterator[Container]:
        yield Container(".", ObjectStat(0, ""))

    def items(self, container: Container) -> Iterator[RawSample]:
        files = self._folder.files(lambda file: splitext(file)[1].lower() in self._looked_at)
        for folder, in_folder in groupby(files, key=lambda one: one[0].rpartition("/")[0]):
            yield from self._pairs(folder, in_folder)

    def read(self, file: str, content: str) -> Members:
        beside = json.loads(content)
        with SourceCheck(self._folder.store):
            if self._suffix:
                members = self._from_file(beside["file"])
            else:
                members = {"txt": text_of(beside["caption"]), "json": to_json({"label": beside["label"]})}
            return {**members, "image": read_file(self._folder.store, file, self._limit)}

    def announce(self, samples: Sequence[tuple[str, str]], fetcher: AddressFetcher | None) -> None:
        if fetcher is not None or not is_remote(self.location):
            return  # no file lies outside the folder
        beside = (json.loads(content)["file"] if self._suffix else "" for _, content in samples)
        pairs = zip(beside, (file for file, _ in samples), strict=True)
        names = (name for pair in pairs for name in pair if name)
        self._folder.store.announce(names, max(self._limit, LARGEST_CAPTION))

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        if not self._suffix:
            return span_bytes([max(size, 0), len(content), len(content)])
        if self._suffix == ".txt":
            return span_bytes([max(size, 0), 512])
        return span_bytes([max(size, 0), JSON_GROWTH * json.loads(content)["bytes"], 512])

    def _pairs(self, folder: str, files: Iterable[tuple[str, ObjectStat]]) -> Iterator[RawSample]:
        """Yield a folder's images in the order of their names, then those in formats that are not read, then
        the captions that have no image."""
        found: dict[str, ObjectStat] = {}
        unread: list[str] = []
        captions: dict[str, tuple[str, ObjectStat]] = {}
        for file, stat in files:
            name, suffix = splitext(file)
            suffix = suffix.lower()
            if suffix in IMAGES:
                found[file] = stat
            elif suffix in UNREAD:
                unread.append(file)
            else:
                captions[name] = file, stat
        # An image that cannot be stored as it is gives way to the same image beside it that can be.
        lesser = {image for image in found if splitext(image)[1].lower() in self._lesser}
        stored = {_stem(image) for image in found if image not in lesser}
        for image in found:
            if image not in lesser or _stem(image) not in stored:
                yield self._item(folder, image, found[image], captions.get(_stem(image)))
        paired = set(map(_stem, found))
        for image in unread:
            if _stem(image) not in paired:
                what = f"{splitext(image)[1].lower()} is not read; convert it"
                yield _faulty(image, folder, ("image.undecodable", what))
        paired |= set(map(_stem, unread))
        for name, (caption, _) in captions.items():
            if name not in paired:
                yield _faulty(caption, folder, ("member.missing", "no image beside this caption"))

    def _item(
        self, folder: str, image: str, stat: ObjectStat, caption: tuple[str, ObjectStat] | None
    ) -> RawSample:
        fields = _fields(folder)
        if self._suffix:
            if caption is None:
                return _faulty(image, folder, ("caption.missing", f"no {self._suffix} file beside it"))
            file, beside = caption
            size = max(beside.size, 0)
            if stat != ABSENT:  # a changed caption is a changed sample
                stat = ObjectStat(stat.size + size, f"{stat.stamp} {beside.size} {beside.stamp}")
            content: dict[str, Any] = {"file": file, "bytes": size}
        elif not folder:
            return _faulty(
                image, folder, ("caption.missing", "lies in no folder that names its class: move it into one")
            )
        else:
            caption_of_class = filled(self._config.templates, fields["label"], key_of(image))
            content = {"label": fields["label"], "caption": caption_of_class}
        return RawSample(image, image, image, fields, json.dumps(content), stat)

    def _from_file(self, file: str) -> dict[str, bytes]:
        content = read_start(self._folder.store, file, LARGEST_CAPTION)
        require_fetched(content, "caption.missing")
        if len(content) > LARGEST_CAPTION:
            raise Reject("caption.missing", f"the caption file has more than {LARGEST_CAPTION:,} bytes")
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise Reject("caption.encoding", f"not UTF-8 at byte {error.start}{RECODE}") from None
        if self._config.field is None:
            return {"txt": text.encode()}
        fields = json_object(text, "caption.missing", "the caption file")
        members = {"txt": text_of(fields.pop(self._config.field, None))}
        return {**members, "json": to_json(fields)} if fields else members


def _stem(file: str) -> str:
    return splitext(file)[0]


def _faulty(file: str, folder: str, fault: tuple[Reason, str]) -> RawSample:
    return RawSample(file, file, file, _fields(folder), fault=fault)


def _fields(folder: str) -> dict[str, str]:
    return {"folder": folder.partition("/")[0], "label": PurePath(folder).name.replace("_", " ").strip()}
