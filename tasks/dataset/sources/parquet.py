"""Rows of Parquet files in bounded memory, with each needed byte read once.

A row group may hold gigabytes, so its columns are read page by page through buffers, and a batch takes as
many rows as fit a budget. Only the largest page must fit into memory, two or three times. Columns that
nobody needs are not read.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.errors import DataError
from tasks.dataset.sources.arrow_rows import ArrowRows, failure

END, ENCRYPTED = b"PAR1", b"PARE"
"""The last bytes of a file; see https://parquet.apache.org/docs/file-format/."""
BUFFER = 4 << 20
"""Bytes to read ahead of each column."""
BATCH_BYTES = 16 << 20
BATCH_ROWS = 4096


class ParquetRows(ArrowRows):
    """The rows of an open Parquet file."""

    def __init__(self, place: str, file: BinaryIO, image: str | None, used: Collection[str] | None) -> None:
        """DataError when the file cannot be read, which is Unreachable if its disk or server is at fault."""
        try:
            self._metadata = pq.read_metadata(file)
            self._opened = pq.ParquetFile(
                file,
                metadata=self._metadata,
                buffer_size=BUFFER,
                pre_buffer=False,
                page_checksum_verification=True,
                read_dictionary=_repeating(self._metadata),
            )
            schema = self._opened.schema_arrow
        except (pa.ArrowException, OSError) as error:
            if (not isinstance(error, OSError) or error.errno is None) and _lacks_its_end(file):
                why = "is no Parquet file, or was cut: the mark of its end is missing; copy it again"
                error = DataError(f"{place} {why}")
            else:
                error = failure(error, place, "cannot be read", f"{place} is no Parquet file")
            file.close()
            raise error from None
        self.count = int(self._metadata.num_rows)
        super().__init__(place, file, schema, image, used)

    def _batches(self) -> Iterator[Any]:
        for group in range(self._opened.num_row_groups):
            rows = _batch_rows(self._metadata.row_group(group), self._opened.schema_arrow)
            yield from self._opened.iter_batches(rows, [group], self._wanted, use_threads=False)


def _lacks_its_end(file: BinaryIO) -> bool:
    """Whether the file does not end as every Parquet file does; False where that cannot be read."""
    try:
        file.seek(max(file.seek(0, io.SEEK_END) - len(END), 0))
        return file.read(len(END)) not in (END, ENCRYPTED)
    except OSError:
        return False


def _repeating(metadata: Any) -> list[str]:
    """Return the paths of columns of texts or bytes that some row group stores with a dictionary."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    columns = (group.column(number) for group in groups for number in range(group.num_columns))
    found = (
        column.path_in_schema
        for column in columns
        if column.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in name for name in column.encodings)
    )
    return list(dict.fromkeys(found))


def _batch_rows(group: Any, schema: Any) -> int:
    """Return how many rows fit the budget, if they are all of the same size."""
    each = int(group.total_byte_size) // max(int(group.num_rows), 1)
    each = max(each, *(_fixed_width(field.type) for field in schema), 1)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // each))


def _fixed_width(kind: Any) -> int:
    """Return the bytes of a value of fixed size, which rows may repeat though the file holds it once."""
    if pa.types.is_fixed_size_binary(kind):
        return int(kind.byte_width)
    return max((_fixed_width(kind.field(n).type) for n in range(kind.num_fields)), default=0)
