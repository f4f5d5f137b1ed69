"""Parquet files that may be torn: read group by group, and only after their metadata has been believed.

What metadata say of rows is looked at first, because a few wrong bytes in them ask for more memory than there
is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.stores import Unreachable
from tasks.dataset.verify.beside import Beside
from tasks.dataset.verify.recorded import told

INTEGERS = ("bytes", "samples", "shard", "row")
MOST_ROWS = 1 << 22
"""Of a row group; ours have 8,192."""
BROKEN = (
    OSError,
    pa.ArrowException,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    EOFError,
    struct.error,
    NotImplementedError,
)
"""Whatever Arrow is known to raise for a file that is none of its own."""


class Torn(Exception):
    """The file cannot be read as the table that it should be; the text says why."""


@dataclass(frozen=True)
class Parquet:
    """A file whose metadata make sense and that has the columns asked for."""

    files: Beside
    name: str
    rows: int
    is_grouped: bool
    """Whether it has a column `group`."""

    def batches(self, *columns: str) -> Iterator[Any]:
        """These columns as a table a row group, in order; Torn."""
        try:
            with self.files.open(self.name) as source:
                file = pq.ParquetFile(source, page_checksum_verification=True)
                for number in range(file.num_row_groups):
                    table = file.read_row_group(number, columns=list(columns), use_threads=False)
                    _check(table, [one for one in columns if one != "group"])
                    yield table
        except Unreachable:
            raise
        except BROKEN as error:
            raise Torn(_worded(error)) from None


def open_parquet(files: Beside, name: str, columns: Sequence[str]) -> Parquet:
    """The file, when its metadata make sense and it has these columns; Torn."""
    try:
        with files.open(name) as source:
            file = pq.ParquetFile(source, page_checksum_verification=True)
            _believe(file.metadata)
            names = file.schema_arrow.names
            found = file.metadata.num_rows
    except Unreachable:
        raise
    except BROKEN as error:
        raise Torn(_worded(error)) from None
    lacking = [column for column in columns if names.count(column) != 1]
    if lacking:
        raise Torn(f"no sound column {', '.join(lacking)}")
    return Parquet(files, name, found, names.count("group") == 1)


def _believe(metadata: Any) -> None:
    """ValueError for numbers of rows that no such file has.

    What metadata say of columns is not looked at: Arrow ends the process where it is nonsense.
    """
    rows = 0
    for number in range(metadata.num_row_groups):
        count = metadata.row_group(number).num_rows
        rows += count
        if not 0 <= count <= MOST_ROWS:
            raise ValueError(f"a row group of {count:,} rows")
    if rows != metadata.num_rows:
        raise ValueError(f"{metadata.num_rows:,} rows, but {rows:,} in its row groups")


def _check(table: Any, columns: Sequence[str]) -> None:
    """ValueError or ArrowInvalid unless the values are whole and of the right kind."""
    table.validate(full=True)
    for name in columns:
        values = table.column(name)
        is_typed = pa.types.is_integer if name in INTEGERS else pa.types.is_string
        if not is_typed(values.type) or values.null_count:
            raise ValueError(f"no sound column {name}")


def _worded(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "unreadable: it asks for more memory than there is"
    if isinstance(error, FileNotFoundError):
        return "missing"
    text = str(error).partition("\n")[0][:200]
    if isinstance(error, ValueError) and text.startswith("no sound column"):
        return text
    if isinstance(error, OSError) and error.strerror:
        return told(error)
    return f"unreadable: {text or type(error).__name__}"
