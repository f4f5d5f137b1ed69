"""Ways to damage a version's manifest, tables and index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.dataset.version.tables import write_table
from tests.dataset.verify.places import Hit, Inject, Place


def file(name: str, damage: Callable[[Path], object], *others: str) -> Inject:
    """Damage a file; verify may name one of the `others` instead, which contradict it then."""

    def inject(version: Path, at: Place) -> Hit:
        damage(version / name)
        return Hit(files=(name, *others))

    return inject


def rewritten(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """A JSON file whose object was changed."""

    def damage(path: Path) -> None:
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return damage


def without_column(name: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        table = pq.read_table(path)
        path.unlink()
        write_table(path, table.drop_columns([name]))

    return damage


def with_rows(change: Callable[[list[dict[str, Any]]], object]) -> Callable[[Path], None]:
    """A table whose rows were changed."""

    def damage(path: Path) -> None:
        table = pq.read_table(path)
        rows = table.to_pylist()
        change(rows)
        path.unlink()
        write_table(path, pa.Table.from_pylist(rows, table.schema))

    return damage


def indexed(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        index = np.load(path)
        made = change(index)
        np.save(path, index if made is None else made)

    return damage


def add(column: str, value: int, row: int = 40) -> Callable[[Path], None]:
    def change(index: Any) -> None:
        index[column][row] += value

    return indexed(change)


def row_of_other_shard(index: Any) -> None:
    index["shard"][0] = 2


def of_another_version(path: Path) -> None:
    """The file of another version, which the test has put beside this one."""
    version = next(folder for folder in path.parents if (folder / "index").is_dir())
    shutil.copyfile(version.parent / "another" / path.relative_to(version), path)
