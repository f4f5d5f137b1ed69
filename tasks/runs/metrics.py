"""`metrics.jsonl`: what a training measured, one JSON line a row, appended by its only writer.

A row survives SIGKILL because it is one `write`. The unique id `uid` of a row tells axis, step and kind but
no attempt: when steps are done again after a resume, the row that is already there stands and the new one
is dropped. Only a row with a null in it, of a number that was not finite, gives way to one without, so every
reader of the whole file sees each step once, at its best.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.core.files import append_line, fsync_path, read_lines

TRAIN_AXIS = "train/step"
EVAL_AXIS = "eval/step"
TAIL_BYTES = 1 << 16


def uid(axis: str, step: int, kind: str) -> str:
    """The id of the one row of `kind` (such as `train`, `val`, `eval/zero_shot`) at a step of an axis."""
    return f"{axis}:{step}:{kind}"


def make_row(axis: str, step: int, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its uid, the time (Unix seconds) and its place on the axis."""
    return {"uid": uid(axis, step, kind), "t": round(time.time(), 3), axis: step, **values}


def finite(value: Any) -> Any:
    """The value with every NaN and infinity in it replaced by None, which JSON can say."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


class MetricsWriter:
    """Appends rows whose uid is not there yet, or only with a null.

    Opening it closes a line that a killed writer left torn.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _close_torn_line(path)
        self._seen = {row["uid"] for row in read(path)[0] if None not in row.values()}

    def append(self, row: Mapping[str, Any]) -> bool:
        """Append the row and return True, or False when a row of its uid is recorded already."""
        if row["uid"] in self._seen:
            return False
        said = finite(row)
        append_line(self.path, json.dumps(said, ensure_ascii=False))
        if None not in said.values():
            self._seen.add(row["uid"])
        return True

    def settle(self) -> None:
        """Put the rows on the disk, where a checkpoint of their steps is about to be."""
        fsync_path(self.path)
        fsync_path(self.path.parent)


def _close_torn_line(path: Path) -> None:
    """End an unfinished last line, so that the next row does not become part of it."""
    try:
        with path.open("r+b") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    except FileNotFoundError:
        return


def read(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """The whole rows from byte `offset` on, one a uid, and the offset to go on from."""
    rows, end = read_lines(path, offset)
    return list({row["uid"]: row for row in rows if "uid" in row}.values()), end


def tail(path: Path, size_bytes: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """The rows in the last `size_bytes` of the file, oldest first; a row cut by that border is left out."""
    try:
        start = max(path.stat().st_size - size_bytes, 0)
    except FileNotFoundError:
        return []
    return read(path, start)[0]


def rows_of(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The rows of one kind, in the order they came."""
    return [row for row in rows if str(row["uid"]).endswith(f":{kind}")]


def last_step(path: Path, kind: str = "train") -> int:
    """The highest step that has a row of `kind`; 0 when there is none."""
    return max((int(row["uid"].split(":")[1]) for row in rows_of(read(path)[0], kind)), default=0)
