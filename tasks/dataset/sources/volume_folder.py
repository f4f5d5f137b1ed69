"""A folder with one volume per file, and tables about the volumes; each format adds how a file is read.

Reports, labels and the scanner's metadata are found by the name of the file. The tables are joined on disk,
so that they take no memory. A row names a file without its suffix: by its path within the source or, as in
CT-RATE's tables, by the last part of the path alone, which must then be the name of one file only.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.core.patterns import expand
from tasks.core.schema import Dataset, Labels, Metadata, ReportTable, VolumeSource
from tasks.core.schema.source import TABLES
from tasks.core.stores import ObjectStat, is_remote, join_location, split_location
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes import geometry, stored
from tasks.dataset.keys import stem
from tasks.dataset.sources.fields import Lookup
from tasks.dataset.sources.protocol import Container, RawSample, fault_of
from tasks.dataset.sources.raw_files import RawFolder, SourceCheck
from tasks.dataset.sources.tabular import OpenTable, open_table, require, rows_by_key
from tasks.dataset.tar.format import Buffer, Members, span_bytes
from tasks.dataset.version.manifest import ROWS_OF
from tasks.dataset.version.rejects import Reason, Reject

if TYPE_CHECKING:
    from tasks.core.remote.addresses import AddressFetcher

JSON_BYTES = 2048
JSON_BYTES_PER_CHUNK = 12
"""A CRC32C in decimal with its comma and space."""
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
NOT_GIVEN = "Not given."
"""How CT-RATE writes that a report lacks a part; CT-CLIP leaves it out as well."""

UNCERTAIN = -1
"""A label of CheXpert that its radiologists could not decide; its authors' policy U-Ignore leaves it out.
Source: J. Irvin et al., "CheXpert: a large chest radiograph dataset with uncertainty labels and expert
comparison" (2019). CT-RATE's labels are 0 and 1."""
KEEPS = "labels: {missing: skip} keeps the volume"

AT_ONCE_BYTES = 1 << 24

TableConfig = ReportTable | Labels | Metadata


class VolumeFolder(ABC):
    """One sample per file; its report, labels and fields come from the tables and from its path."""

    suffixes: ClassVar[tuple[str, ...]]
    is_sequential = False

    def __init__(self, config: VolumeSource, dataset: Dataset, config_key: str) -> None:
        self._tables = config
        self._rules = dataset.volume
        self._config_key = config_key
        self._patterns = {name: re.compile(pattern) for name, pattern in config.fields.items()}
        self._folder = RawFolder(config.path, f"{config_key}.path")
        self._unused: Mapping[str, int] = {}
        self._store = self._folder.store

    @abstractmethod
    def _voxels(self, file: str, rows: Mapping[str, list[str]]) -> tuple[Buffer, dict[str, Any]]:
        """Return the volume in HU as an NPY file's bytes (D, H, W) along `axes`, and its facts: `spacing_mm`
        in that order where it is known, `orientation`, `rescale`. Reject."""

    @abstractmethod
    def _shape(self, file: str) -> tuple[tuple[int, ...], Any]:
        """Return shape (D, H, W) and spacing as the file's header claims them; any exception if it cannot."""

    @property
    @abstractmethod
    def axes(self) -> str:
        """The axes of the body along which the volumes' arrays run, as `geometry` names them."""

    @property
    def location(self) -> str:
        return self._store.location

    @property
    def passed_over(self) -> Mapping[str, int]:
        return {**self._folder.passed_over, **self._unused}

    def columns(self) -> Sequence[str]:
        self._folder.require()
        return list(self._tables.fields)

    def containers(self) -> Iterator[Container]:
        yield Container(self._tables.path, ObjectStat(0, ""))

    def items(self, container: Container) -> Iterator[RawSample]:
        tables = VolumeTables(self._tables, self.location, self._config_key)
        about = (self._tables.reports, self._tables.labels, self._tables.metadata)
        base = f"{self.location.rstrip('/')}/"
        known = {join_location(base, one.path).removeprefix(base) for one in about if one is not None}
        files = list(self._folder.files(lambda file: file.lower().endswith(self.suffixes), known))
        sharing = Counter(_name(file) for file, _ in files)
        for file, stat in files:
            matches = {field: pattern.search(file) for field, pattern in self._patterns.items()}
            fields = {field: match.group(1) if match else None for field, match in matches.items()}
            try:
                rows = tables.rows(file, sharing[_name(file)])
            except Reject as reject:
                yield RawSample(file, file, file, fields, stat=stat, fault=fault_of(reject))
                continue
            yield RawSample(file, file, file, fields, json.dumps({"fields": fields, **rows}), stat)
        self._unused = tables.unused([file for file, _ in files])
        if not files:
            kinds = " or ".join(self.suffixes)
            raise DataError(f"{self._config_key}.path: {self._tables.path} holds no {kinds} file")

    def read(self, file: str, content: str) -> Members:
        beside = json.loads(content)
        report = sole_row(beside["report"], self._tables.reports.path, "report.missing")
        facts: dict[str, Any] = {"volume_name": os.path.basename(file), "axes": self.axes, **beside["fields"]}
        if self._tables.labels is not None:
            facts["labels"] = labels_of(beside["labels"], self._tables.labels)
        with SourceCheck(self._store):
            voxels, known = self._voxels(file, beside)
        facts |= known
        try:
            text = report.encode()
            described = json.dumps(facts, sort_keys=True, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise Reject("caption.encoding", "report, labels or path are not UTF-8") from None
        return {"txt": text, "json": described, "volume": voxels}

    def announce(self, samples: Sequence[tuple[str, str]], fetcher: AddressFetcher | None) -> None:
        """No file lies outside the folder, and a volume is fetched in several ranges at once."""
        return

    def stored_bytes(self, file: str, size: int, content: str) -> int:
        beside = len(content) + JSON_BYTES
        try:
            shape = self._stored_shape(file, json.loads(content))
        except Exception:  # noqa: BLE001 - whatever is wrong with the file is its reject when it is read
            return span_bytes([max(size, 0), beside, beside])
        chunks = math.prod(-(-side // part) for side, part in zip(shape, stored.CHUNK, strict=True))
        checksums = JSON_BYTES_PER_CHUNK * max(chunks, shape[0])
        return span_bytes([stored.most_bytes(shape, self._rules.encode), beside, beside + checksums])

    def _stored_shape(self, file: str, rows: Mapping[str, list[str]]) -> geometry.Shape:
        if self._rules.shape is not None:
            return self._rules.shape
        shape, spacing = self._shape(file)
        if self._tables.metadata is not None:
            spacing = spacing_in(rows["metadata"], self._tables.metadata, self.axes)
        depth, height, width = shape
        # A header may claim any shape; what is larger is rejected as archive.bomb when it is read.
        if min(shape) < 1 or depth * height * width > npy.LARGEST_BYTES:
            raise ValueError(f"{shape} will be rejected")
        sides = geometry.plan((depth, height, width), geometry.spacing_of(spacing), self._rules, self.axes)
        return sides[0].stored, sides[1].stored, sides[2].stored


class VolumeTables:
    """The tables of one source, read once; `rows` returns what they hold about a volume."""

    def __init__(self, config: VolumeSource, root: str, config_key: str) -> None:
        self._root = root
        self._config_key = config_key
        self._reports_path = config.reports.path
        self._tables = {
            "report": _RowsByFile(self._reports(config.reports), config.reports, "report.missing")
        }
        self._unlabelled: list[str] = []
        """The row of a volume that the table of labels leaves out, where that is accepted."""
        if config.labels is not None:
            names = self._label_names(config.labels)
            rows = self._labels(config.labels, names)
            self._tables["labels"] = _RowsByFile(rows, config.labels, "labels.missing")
            if config.labels.missing == "skip":
                self._unlabelled = [json.dumps(dict.fromkeys(names))]
        if config.metadata is not None:
            rows = self._metadata(config.metadata, getattr(config, "rescale", None))
            self._tables["metadata"] = _RowsByFile(rows, config.metadata, "volume.spacing")

    def rows(self, file: str, sharing: int) -> dict[str, list[str]]:
        """Return the distinct rows about a volume by role, none where a table leaves it out; `sharing` files
        have its name. Reject where a table names several files at once."""
        rows = {role: table.about(file, sharing) for role, table in self._tables.items()}
        return {**rows, "labels": rows["labels"] or self._unlabelled} if self._unlabelled else rows

    def unused(self, files: Sequence[str]) -> dict[str, int]:
        """Return how many rows of the reports name none of the files, as `passed_over` counts them."""
        count = self._tables["report"].unused(files)
        return {f"{ROWS_OF}{table_name(self._reports_path)}": count} if count else {}

    def _reports(self, config: ReportTable) -> Iterator[tuple[str, str]]:
        for file, row in self._read(config, "reports", {"text": config.text}):
            yield file, " ".join(filter(None, (_text(row.get(column)) for column in config.text)))

    def _label_names(self, config: Labels) -> list[str]:
        """Return every label that any of the tables has."""
        names: dict[str, None] = {}
        for table in self._opened(config, "labels", None):
            table.close()
            names |= dict.fromkeys(table.columns)
        names.pop(config.key, None)
        return list(names)

    def _labels(self, config: Labels, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield rows with all labels, null where the row itself has none."""
        for file, row in self._read(config, "labels", {}):
            yield file, json.dumps({name: row.get(name) for name in names}, default=str)

    def _metadata(self, config: Metadata, rescale: str | None) -> Iterator[tuple[str, str]]:
        """Yield rows with only the columns that are used, so that changes in others change no sample."""
        names = ["spacing_xy", "spacing_z", *(["slope", "intercept"] if rescale == "metadata" else [])]
        used = {name: [str(getattr(config, name))] for name in names}
        for file, row in self._read(config, "metadata", used):
            yield file, json.dumps({column: row.get(column) for (column,) in used.values()}, default=str)

    def _read(
        self, config: TableConfig, role: str, used: Mapping[str, Sequence[str]]
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the rows that name a file, with its name; `used` are the columns that must be there, by the
        config's key that names them."""
        used = {"key": [config.key], **used}
        for table in self._opened(config, role, list(chain.from_iterable(used.values()))):
            for option, names in used.items():
                for name in names:
                    require(f"{self._config_key}.{role}.{option}", name, table.columns, table.name)
            yield from rows_by_key(table, config.key)

    def _opened(self, config: TableConfig, role: str, wanted: Sequence[str] | None) -> Iterator[OpenTable]:
        key = f"{self._config_key}.{role}.path"
        for location in expand(join_location(self._root, config.path), TABLES, key):
            yield open_table(location, key, wanted)


class _RowsByFile:
    """The rows of one table, by file."""

    def __init__(self, rows: Iterable[tuple[str, str]], config: TableConfig, missing: Reason) -> None:
        self._table = table_name(config.path)
        self._missing = missing
        self._has_paths = False
        self._lookup = Lookup(self._by_name(rows))

    def _by_name(self, rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        for file, row in rows:
            name = stem(posixpath.normpath(file))
            self._has_paths = self._has_paths or "/" in name
            yield name, row

    def about(self, file: str, sharing: int) -> list[str]:
        if self._has_paths and (found := self._lookup[stem(file)]):
            return found
        found = self._lookup[_name(file)]
        if found and sharing > 1:
            problem = f"{sharing:,} files share its name, and {self._table} has no path to tell them apart"
            raise Reject(self._missing, problem)
        return found

    def unused(self, files: Sequence[str]) -> int:
        """Return how many of the rows are about none of the files."""
        known = {*map(stem, files), *map(_name, files)}
        return sum(name not in known for name in self._lookup.every_key())


def fill(flat: NDArray[Any], stream: IO[bytes], name: str, slack: int = 0) -> None:
    """Fill a flat array from a stream that ends with its bytes and at most `slack` more; Reject."""
    view = flat.view(np.uint8).data if flat.size else memoryview(bytearray())
    filled = 0
    while count := stream.readinto(view[filled : filled + AT_ONCE_BYTES]):  # type: ignore[attr-defined]
        filled += count
    if filled < len(view):
        raise Reject("volume.undecodable", f"{name} ends after {filled:,} of {len(view):,} bytes")
    if len(stream.read(slack + 1)) > slack:  # also makes gzip and zipfile compare their CRC
        raise Reject("archive.bomb", f"{name} goes on after its {len(view):,} bytes")


def _name(file: str) -> str:
    """The last part of a file's path, without its suffix."""
    return stem(posixpath.basename(file))


def table_name(path: str) -> str:
    """Return a table's name for the details of rejects, which are the same wherever it lies."""
    return split_location(path.partition("?")[0] if is_remote(path) else path.rstrip("/"))[1]


def _text(value: Any) -> str:
    """Return a cell's text; NaN is how data frames write a missing one."""
    text = "" if value is None or value != value else str(value).strip()
    return "" if text == NOT_GIVEN else text


def labels_of(rows: Sequence[str], config: Labels) -> dict[str, float | None]:
    """Return every label as a number, or None where it is unknown and `missing: skip` allows that. Reject
    other rows with a cell that is no number, several different rows, and no row."""
    if not rows:
        raise Reject("labels.missing", f"no row in {table_name(config.path)}; {KEEPS}")
    skips = config.missing == "skip"
    numbers: dict[str, float | None] = {}
    for name, value in json.loads(sole_row(rows, config.path, "labels.missing")).items():
        number = _number(value)
        is_uncertain = number == UNCERTAIN
        if is_empty(value) or is_uncertain:
            if not skips:
                what = f"{value}, which means uncertain" if is_uncertain else "no value"
                raise Reject("labels.missing", f"{name}: {what}; {KEEPS}")
            numbers[name] = None
        elif number is None:
            raise Reject("labels.missing", f"{name}: {value!r} is no number")
        else:
            numbers[name] = int(number) if number.is_integer() else number
    return numbers


def is_empty(cell: Any) -> bool:
    """Whether a cell of a label holds nothing; NaN is how data frames write that."""
    return cell is None or str(cell).strip().lower() in ("", "nan")


def spacing_in(rows: Sequence[str], config: Metadata, axes: str) -> geometry.Spacing:
    """Return the spacing in mm, in the order of an array along `axes`; Reject when it is not known. The
    in-plane spacing is the distance between rows, then between columns, as in DICOM's PixelSpacing."""
    row = json.loads(sole_row(rows, config.path, "volume.spacing"))
    in_plane = [float(number) for number in NUMBER.findall(str(row.get(config.spacing_xy)))]
    z = _number(row.get(config.spacing_z))
    if z is None or len(in_plane) not in (1, 2):
        cells = {name: row.get(name) for name in (config.spacing_z, config.spacing_xy)}
        raise Reject("volume.spacing", f"{cells} in {table_name(config.path)}")
    return geometry.ordered(axes, z, y=in_plane[0], x=in_plane[-1])


def rescale_in(rows: Sequence[str], config: Metadata) -> tuple[float, float]:
    """Return slope and intercept; Reject when the row does not have them."""
    row = json.loads(sole_row(rows, config.path, "volume.spacing"))
    slope, intercept = (_number(row.get(name)) for name in (config.slope, config.intercept))
    if slope is None or intercept is None or slope == 0:
        cells = {name: row.get(name) for name in (config.slope, config.intercept)}
        problem = "so there is nothing to rescale by"
        raise Reject("volume.hu_range", f"{cells} in {table_name(config.path)}, {problem}")
    return slope, intercept


def sole_row(rows: Sequence[str], table: str, missing: Reason) -> str:
    """Return the only row about a volume; Reject when there is none, or more than one."""
    if len(rows) != 1:
        problem = f"{len(rows)} different rows" if rows else "no row"
        raise Reject(missing, f"{problem} in {table_name(table)}")
    return rows[0]


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
