"""The index of a split: where each sample lies, one fixed-width row per sample, memory-mapped.

At 24 bytes per sample, one file holds 10^9 samples and costs nothing to open. The rows are in the order of
the shards, so the number of a row is the number of the sample in the split.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import ArrayLike, NDArray

from tasks.core.errors import DataError
from tasks.dataset.version.layout import index_name
from tasks.dataset.version.manifest import require_known_format

INDEX = np.dtype([("shard", "<u4"), ("offset", "<u8"), ("length", "<u8"), ("crc32c", "<u4")])
"""One row per sample: the shard's number in the split, and the byte offset, byte length and CRC32C of the
sample's whole span in the tar, from the header of its first member to the last padding."""


def read_index(version: Path, split: str) -> NDArray[np.void]:
    """The split's index, memory-mapped, dtype INDEX; DataError that names the existing splits, the damage,
    or the format of a version that another Tarmac made."""
    require_known_format(version)
    path = version / index_name(split)
    if not path.exists():
        names = ", ".join(sorted(entry.stem for entry in path.parent.glob("*.npy"))) or "none"
        raise DataError(f"{version} has no split {split!r} (it has: {names}); see dataset.splits")
    return open_index(path)


def open_index(path: Path) -> NDArray[np.void]:
    """An index file, memory-mapped, dtype INDEX; DataError when it is not an index."""
    try:
        index: NDArray[np.void] = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except Exception as error:  # noqa: BLE001 - numpy raises whatever a torn header leads it to
        raise DataError(f"{path} is no index ({error}); build the dataset again") from None
    if index.dtype != INDEX or index.ndim != 1:
        raise DataError(f"{path} is no index (dtype {index.dtype}); build the dataset again")
    return index


class DurableWriter:
    """A new file that is whole and flushed to disk when the block ends without an error."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def _end(self) -> None:
        """Write what is left."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._end()
                self._file.flush()
                os.fsync(self._file.fileno())


class IndexWriter(DurableWriter):
    """Writes an index shard by shard."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file.write(_header(0))
        self.rows = 0

    def write(self, shard: int, offset: ArrayLike, length: ArrayLike, crc32c: ArrayLike) -> None:
        """Append the samples of shard number `shard`: one value per sample in each of the three arrays."""
        rows = np.empty(len(np.asarray(offset)), INDEX)
        rows["shard"], rows["offset"], rows["length"], rows["crc32c"] = shard, offset, length, crc32c
        self._file.write(rows.tobytes())
        self.rows += len(rows)

    def _end(self) -> None:
        self._file.seek(0)
        self._file.write(_header(self.rows))


def _header(rows: int) -> bytes:
    """The NPY header; its length does not depend on `rows`, because numpy leaves room for growth."""
    file = io.BytesIO()
    described = {"descr": npy.dtype_to_descr(INDEX), "fortran_order": False, "shape": (rows,)}
    npy.write_array_header_1_0(file, described)
    return file.getvalue()
