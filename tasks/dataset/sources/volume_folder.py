"""A folder with a volume a file, and tables of what is known about each; formats add how a file is read."""

from __future__ import annotations

import json
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Dataset, VolumeSource
from tasks.core.stores import Stat, Unreachable, is_hidden, is_remote, open_store
from tasks.dataset.formats.volumes import geometry, npy, stored
from tasks.dataset.rejects import Reject
from tasks.dataset.sources.base import Container, Item
from tasks.dataset.sources.names import Names
from tasks.dataset.sources.presence import Needed
from tasks.dataset.sources.volume_tables import VolumeTables, labels_of, report_of, spacing_in
from tasks.dataset.tar.writer import Buffer, Members, span_bytes

JSON_BYTES = 2048
JSON_BYTES_A_CHUNK = 12
"""A CRC32C in decimal with its comma and space."""


class VolumeFolder(ABC):
    """A file a sample; its report, labels and fields come from the tables and its path."""

    suffixes: ClassVar[tuple[str, ...]]
    is_sequential = False

    def __init__(self, config: VolumeSource, dataset: Dataset, config_key: str) -> None:
        self._tables = config
        self._rules = dataset.volume
        self._config_key = config_key
        self._patterns = {name: re.compile(pattern) for name, pattern in config.fields.items()}
        self._store = open_store(config.path, f"{config_key}.path")

    @abstractmethod
    def _voxels(self, file: str, rows: Mapping[str, list[str]]) -> tuple[Buffer, dict[str, Any]]:
        """The volume in HU as an NPY file's bytes (D, H, W), and what is known of it: `spacing_mm` (z, y, x)
        where the file tells it, `orientation`, `rescale`. Reject."""

    @abstractmethod
    def _shape(self, file: str) -> tuple[tuple[int, ...], Any]:
        """Shape (D, H, W) and spacing as the file's header claims them; any exception when it cannot."""

    @property
    def location(self) -> str:
        return self._store.location

    def columns(self) -> Sequence[str]:
        if not is_remote(self.location) and not os.path.isdir(self.location):
            raise UsageError(f"{self._config_key}.path: there is no folder {self._tables.path}")
        return list(self._tables.fields)

    def containers(self) -> Iterator[Container]:
        yield Container(self._tables.path, Stat(0, ""))

    def items(self, container: Container) -> Iterator[Item]:
        self.columns()
        tables = VolumeTables(self._tables, self.location, self._config_key)
        files = Names(self._files())
        found = False
        for file in files:
            found = True
            matches = {field: pattern.search(file) for field, pattern in self._patterns.items()}
            fields = {field: match.group(1) if match else None for field, match in matches.items()}
            try:
                about = tables.rows(file, files.sharing(file))
            except Reject as reject:
                yield Item(file, file, file, fields, "", (reject.reason, reject.detail))
                continue
            yield Item(file, file, file, fields, json.dumps({"fields": fields, **about}))
        if not found:
            kinds = " or ".join(self.suffixes)
            raise DataError(f"{self._config_key}.path: {self._tables.path} holds no {kinds} file")

    def _files(self) -> Iterator[str]:
        try:
            for file in self._store.files():
                if file.lower().endswith(self.suffixes) and not is_hidden(file):
                    yield file
        except Unreachable:
            raise
        except OSError as error:
            problem = error.strerror or error
            raise DataError(
                f"{self._config_key}.path: {self._tables.path} cannot be listed: {problem}"
            ) from None

    def stat(self, file: str) -> Stat:
        return self._store.stat(file)

    def read(self, file: str, content: str) -> Members:
        beside = json.loads(content)
        report = report_of(beside["report"], self._tables.reports.path)
        facts: dict[str, Any] = {"volume_name": os.path.basename(file), **beside["fields"]}
        if self._tables.labels is not None:
            facts["labels"] = labels_of(beside["labels"], self._tables.labels.path)
        with Needed(self._store):
            voxels, known = self._voxels(file, beside)
        facts |= known
        try:
            text = report.encode()
            described = json.dumps(facts, sort_keys=True, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Reject("caption.encoding", "report, labels or path are not UTF-8") from None
        return {"txt": text, "json": described, "volume": voxels}

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        beside = len(content) + JSON_BYTES
        try:
            shape = self._stored_shape(file, json.loads(content))
        except Exception:  # noqa: BLE001 - whatever is wrong with the file is its reject when it is read
            return span_bytes([max(size, 0), beside, beside])
        chunks = math.prod(-(-side // part) for side, part in zip(shape, stored.CHUNK, strict=True))
        checksums = JSON_BYTES_A_CHUNK * max(chunks, shape[0])
        return span_bytes([stored.most_bytes(shape, self._rules.encode), beside, beside + checksums])

    def _stored_shape(self, file: str, rows: Mapping[str, list[str]]) -> geometry.Shape:
        if self._rules.shape is not None:
            return self._rules.shape
        shape, spacing = self._shape(file)
        if self._tables.metadata is not None:
            spacing = spacing_in(rows["metadata"], self._tables.metadata)
        depth, height, width = shape
        # A header may claim any shape; what is larger is rejected as archive.bomb when it is read.
        if min(shape) < 1 or depth * height * width > npy.LARGEST_BYTES:
            raise ValueError(f"{shape} will be rejected")
        z, y, x = geometry.plan((depth, height, width), geometry.spacing_of(spacing), self._rules)
        return z.stored, y.stored, x.stored
