"""A split's tables in a version: the index that readers seek by, and what is known of each sample."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from tasks.dataset.build.sidecar import schema
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.layout import index_name
from tasks.dataset.index import INDEX
from tasks.dataset.tables import TableWriter


@contextmanager
def split_tables(version: Path, split: str, modality: str) -> Iterator[SplitTables]:
    """Both tables of a split, whole and on disk when the block ends well, closed in any case."""
    path = (version / index_name(split))
    samples = version / "samples" / f"{split}.parquet"
    for folder in (path.parent, samples.parent):
        folder.mkdir(exist_ok=True)
    with path.open("wb") as index:
        tables = SplitTables(modality, index, samples)
        with tables.samples:
            yield tables
            tables.end_index()


class SplitTables:
    """Written shard by shard."""

    def __init__(self, modality: str, index: BinaryIO, samples: Path) -> None:
        self._statistics = list(MODALITIES[modality].statistics)
        named = {name: schema(modality).field(name).type for name in self._statistics}
        columns = {
            "key": pa.string(),
            "original_key": pa.string(),
            "shard": pa.uint32(),
            "row": pa.uint64(),
            "group": pa.string(),
            **named,
        }
        self._rows = 0
        self._index = index
        self._index.write(_index_header(0))
        self.samples = TableWriter(samples, pa.schema(columns.items()))

    def write(self, number: int, table: Any) -> None:
        """Append the accepted samples of shard `number` of the split."""
        count = table.num_rows
        index = np.empty(count, INDEX)
        index["shard"] = number
        for column in ("offset", "length", "crc32c"):
            index[column] = table.column(column).to_numpy()
        self._index.write(index.tobytes())
        columns = {
            "key": table.column("key"),
            "original_key": table.column("original_key"),
            "shard": pa.array(np.full(count, number, np.uint32)),
            "row": pa.array(np.arange(self._rows, self._rows + count, dtype=np.uint64)),
            "group": table.column("group"),
            **{name: table.column(name) for name in self._statistics},
        }
        self.samples.write(pa.table(columns))
        self._rows += count

    def end_index(self) -> None:
        """Note the number of rows, now that it is known, and flush to disk."""
        self._index.seek(0)
        self._index.write(_index_header(self._rows))
        self._index.flush()
        os.fsync(self._index.fileno())


def _index_header(rows: int) -> bytes:
    """The NPY header of an index; its length does not depend on `rows`, as numpy leaves room for growth."""
    file = io.BytesIO()
    described = {"descr": npy.dtype_to_descr(INDEX), "fortran_order": False, "shape": (rows,)}
    npy.write_array_header_1_0(file, described)
    return file.getvalue()
