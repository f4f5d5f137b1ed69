"""Rows of Arrow's record batches as Python values, whatever kind of file they come from.

Columns of bytes are not converted, except for the image's and those that are used as texts: some writers
(Spark, Impala) do not mark a column's bytes as UTF-8. A value that a file holds once for many rows (a
dictionary) is held once here too, and becomes a row's value when that row is returned. A number of Hugging
Face's `ClassLabel`, also in a list, becomes the name of its class, which the schema holds.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa

from tasks.core.errors import DataError
from tasks.dataset.sources.fields import TableRow
from tasks.dataset.sources.raw_files import unreachable

TORN = object()
"""A cell that cannot be converted to a Python value."""
LISTS = ("Sequence", "List", "LargeList")
"""The types of Hugging Face's features that hold a list of one other feature."""


class ArrowRows(ABC):
    """The rows of an open file, to be iterated over once; reading them to their end closes the file.

    `columns` are all names, `binary` those of columns that hold bytes, `count` is the number of rows where it
    is known. A row has a fault when a `used` column (None: any) holds no valid value; in other columns such a
    value is None. A plain column of bytes that is `used` and is not the `image` counts as one of texts.
    """

    count: int | None = None

    def __init__(
        self, place: str, file: BinaryIO, schema: Any, image: str | None, used: Collection[str] | None
    ) -> None:
        """DataError, and the file is closed, when two columns share a name."""
        self._place = place
        self._file = file
        self._used = used
        self.columns: list[str] = schema.names
        repeated = next((name for name in self.columns if self.columns.count(name) > 1), None)
        if repeated is not None:
            file.close()
            raise DataError(f"{place}: two columns are named {repeated!r}; rename one")
        asked = frozenset(used or ()) - {image}
        self._texts = {field.name for field in schema if field.name in asked and _is_plain_bytes(field.type)}
        self.binary = frozenset(field.name for field in schema if holds_bytes(field.type)) - self._texts
        self._classes = class_names(schema.metadata)
        self._wanted = [name for name in self.columns if name not in self.binary or name == image]

    @abstractmethod
    def _batches(self) -> Iterator[Any]:
        """Yield record batches of the wanted columns; raises pa.ArrowException or OSError."""

    def __iter__(self) -> Iterator[TableRow]:
        line = 1
        try:
            with self._file:
                for batch in self._batches():
                    names = batch.schema.names
                    for cells in zip(*map(self._cells, names, batch.columns), strict=True):
                        yield self._row(line, dict(zip(names, cells, strict=True)), TORN in cells)
                        line += 1
        except (pa.ArrowException, OSError) as error:
            problem = f"row {line} and on cannot be read"
            raise failure(error, self._place, problem, f"{self._place}: {problem}") from None

    def _row(self, line: int, fields: dict[str, Any], is_torn: bool) -> TableRow:
        for name in [name for name, cell in fields.items() if cell is TORN] if is_torn else ():
            if self._used is None or name in self._used:
                return TableRow(line, {}, f"column {name} holds no valid value")
            fields[name] = None
        return TableRow(line, fields)

    def _cells(self, name: str, column: Any) -> Iterator[Any]:
        values = _values(column)
        if name in self._classes:
            return map(partial(_named, self._classes[name]), values)
        if name not in self._texts:
            return values
        return (_text(value) if isinstance(value, bytes) else value for value in values)


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, dict[int, str]]:
    """Return the class names by number of each column of a `ClassLabel`, or of lists of one, from the
    `huggingface` entry of a schema's metadata, as `datasets` writes it; -1 stands for no label there."""
    try:
        features = dict(json.loads((metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):  # no metadata, or in another form
        return {}
    named = {column: _names(feature) for column, feature in features.items()}
    return {column: names for column, names in named.items() if names}


def _names(feature: Any) -> dict[int, str]:
    """Return the class names of a column's feature; {} where it has none. A list was written as a JSON list
    of one feature before it got a type of its own."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, dict):
        return {}
    if feature.get("_type") in LISTS:
        return _names(feature.get("feature"))
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else None
    return dict(enumerate(map(str, names))) if isinstance(names, list) else {}


def _named(names: Mapping[int, str], value: Any) -> Any:
    return [names.get(one) for one in value] if isinstance(value, list) else names.get(value)


def failure(error: Exception, place: str, problem: str, message: str) -> DataError:
    """Return Unreachable where disk or server is at fault. Arrow raises an OSError for damage too, but
    without errno."""
    if isinstance(error, OSError) and error.errno is not None:
        return unreachable(place, error, problem)
    return DataError(f"{message}: {error}")


def holds_bytes(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return holds_bytes(kind.value_type)
    if _is_plain_bytes(kind) or pa.types.is_fixed_size_binary(kind):
        return True
    return any(holds_bytes(kind.field(n).type) for n in range(kind.num_fields))


def _is_plain_bytes(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_plain_bytes(kind.value_type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _values(column: Any) -> Iterator[Any]:
    """Yield the column's Python values, converted one by one where they may be large."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _repeated(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        raw = pa.binary() if pa.types.is_string(kind) else pa.large_binary()
        return map(_text, column.cast(raw).to_pylist())
    if pa.types.is_nested(kind) or holds_bytes(kind):
        return map(_value, column)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp(kind.unit))  # in UTC, whatever zones this machine knows
    if _has_nanoseconds(kind):
        column = column.cast(pa.string())  # Python's times have none
    try:
        return iter(column.to_pylist())
    except (ValueError, OverflowError, pa.ArrowException):
        return map(_value, column)


def _repeated(column: Any) -> Iterator[Any]:
    """Yield a dictionary column's values, each converted when a row first has it."""
    known: dict[int, Any] = {}
    for index in column.indices.to_pylist():
        if index is None:
            yield None
            continue
        if index not in known:
            known[index] = next(_values(column.dictionary.slice(index, 1)))
        yield known[index]


def _text(value: bytes | None) -> str | None:
    """Decode a text here, as Arrow does not check that its texts are UTF-8."""
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _has_nanoseconds(kind: Any) -> bool:
    has_unit = pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind)
    return bool(has_unit and kind.unit == "ns")


def _value(cell: Any) -> Any:
    try:
        return cell.as_py()
    except (KeyError, ValueError, OverflowError, pa.ArrowException):  # KeyError: a zone that is not known
        return TORN
