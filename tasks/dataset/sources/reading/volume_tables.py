"""What tables say about volumes: reports, labels and the scanner's metadata, found by the name of the file.

The tables are joined on disk, so that any number of volumes takes no memory. A row is found by the file's
name without folder and suffix, as CT-RATE's tables name it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from tasks.core.errors import DataError
from tasks.core.schema import Labels, Metadata, Reports, VolumeSource
from tasks.core.stores import expand, join_location
from tasks.dataset.keys import stem
from tasks.dataset.reasons import Reject
from tasks.dataset.sources.reading.columns import require
from tasks.dataset.sources.reading.lookup import Lookup
from tasks.dataset.sources.reading.tabular import SUFFIXES, Row, open_table

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class VolumeTables:
    """The tables of one source, read once; `rows` gives what they say about a volume."""

    def __init__(self, config: VolumeSource, root: str, config_key: str) -> None:
        self._root = root
        self._config_key = config_key
        self._lookups: dict[str, Lookup] = {"report": Lookup(self._reports(config.reports))}
        if config.labels is not None:
            self._lookups["labels"] = Lookup(self._whole_rows(config.labels, "labels", {}))
        if config.metadata is not None:
            columns = _columns(config.metadata, getattr(config, "rescale", None))
            self._lookups["metadata"] = Lookup(self._whole_rows(config.metadata, "metadata", columns))

    def rows(self, name: str) -> dict[str, list[str]]:
        """The distinct rows about the volume of that name, by role; none where a table leaves it out."""
        return {role: lookup[name] for role, lookup in self._lookups.items()}

    def _reports(self, config: Reports) -> Iterator[tuple[str, str]]:
        for row in self._rows(config, "reports", {"text": config.text}):
            parts = [_text(row.fields.get(column)) for column in config.text]
            yield stem(str(row.fields.get(config.key))), " ".join(part for part in parts if part)

    def _whole_rows(
        self, config: Labels | Metadata, role: str, columns: dict[str, Sequence[str]]
    ) -> Iterator[tuple[str, str]]:
        for row in self._rows(config, role, columns):
            rest = {name: value for name, value in row.fields.items() if name != config.key}
            yield stem(str(row.fields.get(config.key))), json.dumps(rest, default=str)

    def _rows(
        self, config: Reports | Labels | Metadata, role: str, columns: dict[str, Sequence[str]]
    ) -> Iterator[Row]:
        key = f"{self._config_key}.{role}"
        wanted = [config.key, *chain.from_iterable(columns.values())]
        for location in expand(join_location(self._root, config.path), SUFFIXES, f"{key}.path"):
            table = open_table(location, f"{key}.path", wanted)
            for option, names in {"key": [config.key], **columns}.items():
                for name in names:
                    require(f"{key}.{option}", name, table.columns, table.name)
            for row in table.rows:
                if row.fault is not None:
                    raise DataError(f"{location}:{row.line}: {row.fault}")
                yield row


def _columns(config: Metadata, rescale: str | None) -> dict[str, Sequence[str]]:
    """The columns that will be looked at, by the option that names them."""
    options = ["spacing_xy", "spacing_z", *(["slope", "intercept"] if rescale == "metadata" else [])]
    return {option: [getattr(config, option)] for option in options}


def _text(value: Any) -> str:
    """A cell; NaN is how data frames write a missing text."""
    return "" if value is None or value != value else str(value).strip()


def report_of(rows: Sequence[str], table: str) -> str:
    """The one report; Reject when there is none, or more than one."""
    if not rows:
        raise Reject("report.missing", f"no row in {table}")
    if len(rows) != 1:
        raise Reject("report.missing", f"{len(rows)} different rows in {table}")
    return rows[0]


def labels_of(rows: Sequence[str], table: str) -> dict[str, float]:
    """Every label as a number; Reject when the row or one of its cells is missing."""
    if len(rows) != 1:
        raise Reject(
            "labels.missing", f"{len(rows)} different rows in {table}" if rows else f"no row in {table}"
        )
    numbers = {}
    for name, value in json.loads(rows[0]).items():
        number = _number(value)
        if number is None:
            raise Reject("labels.missing", f"{name}: {value!r} is no number")
        numbers[name] = int(number) if number.is_integer() else number
    return numbers


def spacing_in(rows: Sequence[str], config: Metadata) -> tuple[float, float, float]:
    """(z, row, column) in mm, as DICOM's SliceThickness and PixelSpacing name them; Reject when unknown."""
    row = _row(rows, config)
    in_plane = [float(number) for number in NUMBER.findall(str(row.get(config.spacing_xy)))]
    z = _number(row.get(config.spacing_z))
    if z is None or len(in_plane) not in (1, 2):
        cells = {name: row.get(name) for name in (config.spacing_z, config.spacing_xy)}
        raise Reject("volume.spacing", f"{cells} in {config.path}")
    return z, in_plane[0], in_plane[-1]


def rescale_in(rows: Sequence[str], config: Metadata) -> tuple[float, float]:
    """Slope and intercept; Reject when they are not there."""
    row = _row(rows, config)
    slope, intercept = (_number(row.get(name)) for name in (config.slope, config.intercept))
    if slope is None or intercept is None or slope == 0:
        cells = {name: row.get(name) for name in (config.slope, config.intercept)}
        raise Reject("volume.hu_range", f"{cells} in {config.path}, so there is nothing to rescale by")
    return slope, intercept


def _row(rows: Sequence[str], config: Metadata) -> dict[str, Any]:
    if len(rows) != 1:
        told = f"{len(rows)} different rows" if rows else "no row"
        raise Reject("volume.spacing", f"{told} in {config.path}")
    found: dict[str, Any] = json.loads(rows[0])
    return found


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
