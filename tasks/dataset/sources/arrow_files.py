"""Rows of Arrow files (`.arrow`), as Hugging Face's `save_to_disk` writes them, and of Feather.

A file is read in order, a record batch at a time: the largest one must fit into memory. `datasets` puts a
hundred rows into one where they hold images, else a thousand. It is not mapped into memory, because a disk
that fails would then kill the process instead of raising an error.

The formats are Arrow's "IPC streaming format" and "IPC file format", https://arrow.apache.org/docs/format/
Columnar.html. A stream that was cut between two batches looks like a shorter one, so the mark of its end is
required, which the format leaves to its writer.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from tasks.core.errors import DataError
from tasks.dataset.sources.arrow_rows import ArrowRows, failure

MAGIC = b"ARROW1"
"""The start of the file format."""
CONTINUED = b"\xff\xff\xff\xff"
"""The start of each message of a stream."""
END = CONTINUED + bytes(4)
RECORD_BATCH = 3
"""Its number among the kinds of messages."""


class ArrowFileRows(ArrowRows):
    """The rows of an open file in either of Arrow's formats."""

    def __init__(self, place: str, file: BinaryIO, image: str | None, used: Collection[str] | None) -> None:
        """DataError when the file cannot be read, which is Unreachable if its disk or server is at fault."""
        try:
            is_stream = file.read(len(MAGIC)) != MAGIC
            if is_stream:
                self.count = _rows_of_stream(place, file)
            file.seek(0)
            self._opened = pa.ipc.open_stream(file) if is_stream else pa.ipc.open_file(file)
            schema = self._opened.schema
        except (pa.ArrowException, OSError) as error:
            file.close()
            raise failure(error, place, "cannot be read", f"{place} is no Arrow file") from None
        except DataError:
            file.close()
            raise
        super().__init__(place, file, schema, image, used)

    def _batches(self) -> Iterator[Any]:
        if isinstance(self._opened, pa.RecordBatchReader):
            batches: Iterator[Any] = iter(self._opened)
        else:
            numbers = range(self._opened.num_record_batches)
            batches = (self._opened.get_batch(number) for number in numbers)
        yield from (batch.select(self._wanted) for batch in batches)


def _rows_of_stream(place: str, file: BinaryIO) -> int | None:
    """Return the number of rows of a local stream, without reading them; None for others. DataError when its
    end is missing."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(size - len(END), 0))
    if file.read(len(END)) != END:
        raise DataError(
            f"{place} is no Arrow file, or was cut: the mark of its end is missing; copy it again"
        )
    try:
        os.fstat(file.fileno())
    except OSError:  # a remote file, of which each message would be a request
        return None
    rows, position = 0, 0
    try:
        while position < size - len(END):
            file.seek(position)
            start, length = struct.unpack("<4si", file.read(8))
            if start != CONTINUED or length <= 0:
                return None  # as Arrow wrote streams before its version 0.15, or damaged
            found, body = _message(file.read(length))
            if found < 0 or body < 0:
                return None
            rows += found
            position += 8 + length + body
    except (struct.error, IndexError):
        return None  # whoever reads the rows will find what is wrong
    return rows


def _message(metadata: bytes) -> tuple[int, int]:
    """Return the rows of a message and the bytes of its body. Its metadata are a flatbuffer, of the table
    `Message` in https://github.com/apache/arrow/blob/main/format/Message.fbs."""
    (root,) = struct.unpack_from("<I", metadata)
    kind, header, body = (_field(metadata, root, number) for number in (1, 2, 3))
    (length,) = struct.unpack_from("<q", metadata, body) if body else (0,)
    if not kind or metadata[kind] != RECORD_BATCH or not header:
        return 0, length
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    rows = _field(metadata, batch, 0)
    return (struct.unpack_from("<q", metadata, rows)[0] if rows else 0), length


def _field(metadata: bytes, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffer's table; 0 where it has its default value."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, vtable)[0]:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + 4 + 2 * number)
    return table + offset if offset else 0
