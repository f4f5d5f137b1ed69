"""`metrics.jsonl`: what a training measured, one JSON line per row, appended by its only writer.

A row survives SIGKILL because it is one `write`. The unique id `uid` of a row names axis, step and kind but
no attempt: when steps are done again after a resume, the row that is already there stands and the new one
is dropped. Only a row with a null in it, for a number that was not finite, gives way to one without, so every
reader of the whole file gets each step once, at its best.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.core.files import append_line, fsync_path, read_lines
from tasks.core.units import counted, shorten

TRAIN_AXIS = "train/step"
EVAL_AXIS = "eval/step"
AXES = (TRAIN_AXIS, EVAL_AXIS)
MOST_STEPS = 1 << 62
TAIL_BYTES = 1 << 16
UID = re.compile(r"([^:]+):(\d+):.+")


def make_row(axis: str, step: int, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its uid, the time (Unix seconds) and its place on the axis.

    It is the one row of `kind` (such as `train`, `val`, `eval/zero_shot`) at that step of the axis.
    """
    return {"uid": f"{axis}:{step}:{kind}", "t": round(time.time(), 3), axis: step, **values}


def axis_of(row: Mapping[str, Any]) -> str:
    """Return the axis on which a sound row has its place: the one that its uid names, if it names one."""
    named = row["uid"].partition(":")[0]
    return named if named in AXES else next(axis for axis in AXES if axis in row)


def finite(value: Any) -> Any:
    """Return the value with every NaN and infinity in it replaced by None, which JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return value


class MetricsWriter:
    """Appends rows whose uid is not there yet, or only with a null.

    Opening it closes a line that a killed writer left torn. Without a path, as of all ranks but the first,
    it writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._recorded: set[str] = set()
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _close_torn_line(path)
        self._recorded |= {row["uid"] for row in read_metrics(path)[0] if None not in row.values()}

    def append(self, row: Mapping[str, Any]) -> bool:
        """Append the row and return True, or False when a row of its uid is recorded already."""
        if self.path is None or row["uid"] in self._recorded:
            return False
        written = finite(row)
        append_line(self.path, json.dumps(written, ensure_ascii=False))
        if None not in written.values():
            self._recorded.add(row["uid"])
        return True

    def settle(self) -> None:
        """Put the rows on the disk, where a checkpoint of their steps is about to be."""
        if self.path is None:
            return
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


def read_metrics(path: Path, offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """Return the whole rows from byte `offset` on, one per uid, and the offset to go on from.

    A row with a fault, which only a foreign writer leaves, is skipped; `faults` names it. Of several rows of
    a uid the first counts, or the first without a null; JSON's own NaN counts as null as well.
    """
    lines, end = read_lines(path, offset)
    kept: dict[str, dict[str, Any]] = {}
    for row in lines:
        if fault_of(row) is not None:
            continue
        if not all(value is None or isinstance(value, str) or math.isfinite(value) for value in row.values()):
            row = finite(row)
        known = kept.get(row["uid"])
        if known is None or (None in known.values() and None not in row.values()):
            kept[row["uid"]] = row
    return list(kept.values()), end


def fault_of(row: Mapping[str, Any]) -> str | None:
    """Explain what makes a row unusable; None for a sound one."""
    uid = row.get("uid")
    if not isinstance(uid, str) or not uid:
        return f"its uid is {_brief(uid)}, which is no text" if "uid" in row else "it has no uid"
    for key, value in row.items():
        if key != "uid" and value is not None and not _is_number(value):
            return f"{key} is {_brief(value)}, which is no number"
    named = UID.fullmatch(uid)
    if named is not None and row.get(named[1]) != int(named[2]):
        return f"{named[1]} is {row.get(named[1])!r}, but its uid is {uid!r}"
    steps = {axis: row[axis] for axis in AXES if axis in row}
    if not steps:
        return f"it has neither {TRAIN_AXIS} nor {EVAL_AXIS}"
    for axis, step in steps.items():
        if step is None or not 0 <= step < MOST_STEPS or step != int(step):
            return f"{axis} is {_brief(step)}, which is no step"
    return None


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:  # JSON has integers of any length
        return False
    return True


def _brief(value: Any) -> str:
    return shorten(json.dumps(value, ensure_ascii=False))


def faults(path: Path) -> list[str]:
    """Return a line for each row that no reader takes, and for each number that none takes as it is: its line
    in the file, and why."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]  # a last line without an end is still being written
    except FileNotFoundError:
        return []
    found, taken = [], _CountedRows()
    for number, line in enumerate(lines, 1):
        if (
            line.strip()
            and (fault := _fault_in(line) or taken.fault_of(json.loads(line), number)) is not None
        ):
            found.append(f"{path.name} line {number}: {fault}")
    return [*found, *taken.nulls(path.name)]


def _fault_in(line: bytes) -> str | None:
    try:
        row = json.loads(line)
    except ValueError:
        return "it is torn"
    return fault_of(row) if isinstance(row, dict) else "it is no JSON object"


class _CountedRows:
    """The sound rows of a file so far: by uid the line of the one that counts, and whether it is whole."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[int, bool]] = {}

    def fault_of(self, row: Mapping[str, Any], number: int) -> str | None:
        is_whole = None not in finite(row).values()
        line, was_whole = self._lines.setdefault(row["uid"], (number, is_whole))
        if was_whole and line != number:
            return f"its uid {row['uid']!r} is that of line {line}, which counts"
        if is_whole:
            self._lines[row["uid"]] = (number, True)
        return None

    def nulls(self, name: str) -> list[str]:
        lines = [line for line, is_whole in self._lines.values() if not is_whole]
        rows = f"and {counted(len(lines) - 1, 'further line')} hold" if len(lines) > 1 else "holds"
        return [f"{name} line {lines[0]} {rows} a number that is not finite; it is null"] if lines else []


def tail(path: Path, size_bytes: int = TAIL_BYTES) -> list[dict[str, Any]]:
    """Return the rows in the last `size_bytes` of the file, oldest first; a row cut by that border is left
    out."""
    try:
        start = max(path.stat().st_size - size_bytes, 0)
    except FileNotFoundError:
        return []
    return read_metrics(path, start)[0]


def rows_of(rows: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the rows of one kind on the axis of the training, in the order they came."""
    return [row for row in rows if row["uid"] == f"{TRAIN_AXIS}:{row.get(TRAIN_AXIS)}:{kind}"]


def last_step(path: Path, kind: str = "train", offset: int = 0) -> int:
    """Return the highest step that has a row of `kind` from byte `offset` on; 0 when there is none."""
    return max((int(row[TRAIN_AXIS]) for row in rows_of(read_metrics(path, offset)[0], kind)), default=0)


def loss_at(path: Path, step: int) -> float | None:
    """Return the training loss of the newest row up to `step`.

    NaN where it was not finite; None without a row.
    """
    rows = rows_of(read_metrics(path)[0], "train")
    losses = {int(row[TRAIN_AXIS]): row.get("train/loss") for row in rows if int(row[TRAIN_AXIS]) <= step}
    if not losses:
        return None
    loss = losses[max(losses)]
    return float(loss) if isinstance(loss, int | float) else math.nan
