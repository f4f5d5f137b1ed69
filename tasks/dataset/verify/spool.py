"""Equal values among any number of them, in constant memory.

Each value is 64 bits with the place where it was met. They go to a temporary file without a name, in sorted
runs; at the end the runs are read side by side, a range of values at a time, where equal ones meet. 16 bytes
of disk a value are the price; up to BUFFER of them need no disk.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from tasks.core.files import disk_full_as_error

MET = np.dtype([("value", "<u8"), ("place", "<u4"), ("row", "<u4")])
"""`place` and `row` are the caller's; equal values come sorted by them."""
BUFFER = 1 << 17
"""Values that are held: 2 MB, and a few times as much while they are sorted."""
RANGE_BITS = 10
RANGES = 1 << RANGE_BITS


class Spool:
    """Takes values, then gives those that were met more than once."""

    def __init__(self) -> None:
        self._file: BinaryIO | None = None
        self._held: NDArray[np.void] = np.empty(0, MET)
        self._count = 0
        self._runs: list[tuple[int, NDArray[np.uint32]]] = []
        """Where each run begins in the file, in values, and where in it each range of values does."""
        self._written = 0

    def add(self, values: NDArray[np.uint64], place: int, rows: NDArray[np.uint32]) -> None:
        """Values met at one place."""
        if not len(self._held):
            self._held = np.empty(BUFFER, MET)
        start = 0
        while start < len(values):
            stop = min(start + BUFFER - self._count, len(values))
            met = self._held[self._count : self._count + stop - start]
            met["value"], met["place"], met["row"] = values[start:stop], place, rows[start:stop]
            self._count += stop - start
            start = stop
            if self._count == BUFFER:
                self._write()

    def repeated(self) -> Iterator[NDArray[np.void]]:
        """All places of values met more than once, sorted by value; a value is in one piece."""
        if self._file is None:
            yield _repeated([self._held[: self._count]])
            return
        if self._count:
            self._write()
        step = max(BUFFER * RANGES // self._written, 1)
        for first in range(0, RANGES, step):
            last = min(first + step, RANGES)
            pieces = [self._read(start, int(marks[first]), int(marks[last])) for start, marks in self._runs]
            yield _repeated(pieces)

    def _write(self) -> None:
        if self._file is None:
            self._file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - `close` closes it
        run = self._held[: self._count]
        run = run[np.argsort(run["value"], kind="stable")]
        bounds = np.arange(1, RANGES, dtype=np.uint64) << np.uint64(64 - RANGE_BITS)
        marks = np.concatenate([[0], np.searchsorted(run["value"], bounds), [len(run)]]).astype(np.uint32)
        with disk_full_as_error(Path(tempfile.gettempdir())):
            self._file.write(run.tobytes())
            self._file.flush()
        self._runs.append((self._written, marks))
        self._written += len(run)
        self._count = 0

    def _read(self, run: int, first: int, last: int) -> NDArray[np.void]:
        """Values of the run that begins at `run`."""
        assert self._file is not None
        size, offset = (last - first) * MET.itemsize, (run + first) * MET.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), size, offset), MET)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _repeated(pieces: list[NDArray[np.void]]) -> NDArray[np.void]:
    met = np.concatenate(pieces)
    values = np.sort(met["value"])
    again = values[1:][values[1:] == values[:-1]]
    if not len(again):
        return np.empty(0, MET)  # not a part of `met`, which would keep all of it
    met = met[np.isin(met["value"], again)]
    return met[np.lexsort((met["row"], met["place"], met["value"]))]
