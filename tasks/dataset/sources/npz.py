"""CT volumes as NPZ files, one volume a file, with a table of reports and perhaps one of labels."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Dataset, NpzSource
from tasks.dataset import volumes
from tasks.dataset.keys import stem
from tasks.dataset.reasons import Reject
from tasks.dataset.sources import archive
from tasks.dataset.sources.columns import require
from tasks.dataset.sources.source import Item
from tasks.dataset.sources.tabular import Row, open_table
from tasks.dataset.tar import Members, span_bytes

JSON_BYTES_A_SLICE = 12
"""A CRC32C in decimal with its comma and space."""


class NpzVolumes:
    """A file a sample; its report, labels and fields come from the tables and its path."""

    def __init__(self, config: NpzSource, dataset: Dataset, config_key: str) -> None:
        self._config = config
        self._config_key = config_key
        self._patterns = {name: re.compile(pattern) for name, pattern in config.fields.items()}
        self.root = config.path.absolute()

    def columns(self) -> Sequence[str]:
        if not self.root.is_dir():
            raise UsageError(f"{self._config_key}.path: there is no folder {self._config.path}")
        return list(self._config.fields)

    def items(self) -> Iterator[Item]:
        reports = self._reports()
        labels = self._labels()
        found = False
        for file in self._files():
            found = True
            name = stem(os.path.basename(file))
            matches = {field: pattern.search(file) for field, pattern in self._patterns.items()}
            fields = {field: match.group(1) if match else None for field, match in matches.items()}
            content: dict[str, Any] = {"fields": fields, "report": reports.get(name)}
            if labels is not None:
                content["labels"] = labels.get(name)
            yield Item(file, file, file, fields, json.dumps(content))
        if not found:
            raise DataError(f"{self._config_key}.path: {self._config.path} holds no .npz file")

    def read(self, file: str, content: str) -> Members:
        beside = json.loads(content)
        report = beside["report"]
        if report is None:
            raise Reject("report.missing", f"no row in {self._config.reports.path.name}")
        if len(report) != 1:
            raise Reject(
                "report.missing", f"{len(report)} different rows in {self._config.reports.path.name}"
            )
        facts = {"volume_name": os.path.basename(file), **beside["fields"]}
        if self._config.labels is not None:
            facts["labels"] = _complete(beside["labels"], self._config.labels.path.name)
        try:
            text = report[0].encode()
            described = json.dumps(facts, sort_keys=True, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Reject("caption.encoding", "report, labels or path are not UTF-8") from None
        array = archive.read_array(self.root / file, self._config.array)
        return {"txt": text, "json": described, "volume.npy": volumes.to_npy(array, self._config.scale)}

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        try:
            shape = archive.peek(self.root / file, self._config.array).shape
        except Exception:  # noqa: BLE001 - whatever is wrong with the file is its reject when it is read
            return span_bytes([max(size, 0), len(content)])
        # A header may claim any shape; what is larger is rejected as archive.bomb when it is read.
        voxels = min(math.prod(shape), archive.LARGEST_BYTES)
        slices = min(shape[0], voxels) if shape else 0
        return span_bytes([128 + 2 * voxels, len(content), len(content) + 512 + JSON_BYTES_A_SLICE * slices])

    def _files(self) -> Iterator[str]:
        """Paths below the root, in the order of their names."""
        for folder, folders, names in os.walk(self.root):
            folders.sort()
            below = os.path.relpath(folder, self.root)
            for name in sorted(names):
                if name.lower().endswith(".npz"):
                    yield name if below == "." else f"{below}/{name}"

    def _reports(self) -> dict[str, list[str]]:
        """The distinct reports of each volume, by its file's name without suffix."""
        config = self._config.reports
        texts: dict[str, list[str]] = {}
        for row in self._rows(config.path, config.key, config.text, "reports"):
            parts = [str(row.fields[column] or "").strip() for column in config.text if column in row.fields]
            text = " ".join(part for part in parts if part)
            known = texts.setdefault(stem(str(row.fields.get(config.key))), [])
            if text not in known:
                known.append(text)
        return texts

    def _labels(self) -> dict[str, dict[str, Any]] | None:
        config = self._config.labels
        if config is None:
            return None
        rows = self._rows(config.path, config.key, [], "labels")
        return {
            stem(str(row.fields.get(config.key))): {
                name: value for name, value in row.fields.items() if name != config.key
            }
            for row in rows
        }

    def _rows(self, path: Path, key: str, columns: Sequence[str], role: str) -> Iterator[Row]:
        table = open_table(self.root / path, f"{self._config_key}.{role}.path")
        require(f"{self._config_key}.{role}.key", key, table.columns, table.path.name)
        for name in columns:
            require(f"{self._config_key}.{role}.text", name, table.columns, table.path.name)
        for row in table.rows:
            if row.fault is not None:
                raise DataError(f"{table.path}:{row.line}: {row.fault}")
            yield row


def _complete(labels: dict[str, Any] | None, table: str) -> dict[str, float]:
    """Every label as a number; Reject when the row or one of its cells is missing."""
    if labels is None:
        raise Reject("labels.missing", f"no row in {table}")
    numbers = {}
    for name, value in labels.items():
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise Reject("labels.missing", f"{name}: {value!r} is no number") from None
        if not math.isfinite(number):
            raise Reject("labels.missing", f"{name} is {value!r}")
        numbers[name] = int(number) if number.is_integer() else number
    return numbers
