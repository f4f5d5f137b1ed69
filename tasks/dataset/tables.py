"""Parquet files that are the same bytes for the same rows, written durably."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

ROW_GROUP = 1 << 16


def write_table(path: Path, table: Any) -> None:
    """Write and flush a table; how its chunks came about leaves no trace in the file."""
    with path.open("wb") as file:
        pq.write_table(
            table.combine_chunks(),
            file,
            row_group_size=ROW_GROUP,
            compression="zstd",
            write_page_checksum=True,
        )
        file.flush()
        os.fsync(file.fileno())


def read_table(path: Path) -> Any:
    """The whole table, its checksums compared; OSError or pyarrow.ArrowException as they come."""
    return pq.ParquetFile(path, page_checksum_verification=True).read()
