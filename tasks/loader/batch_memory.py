"""Memory in which batches travel from a loader's workers to the training process, used again and again.

A batch in pages of its own costs more than its copy: the kernel clears each page, and both processes map it.
So a worker keeps its buffers in one unnamed file that it shares with the training process, and its message
about a batch says only where the tensors lie. A buffer is free again when the last tensor of its batch is
gone. A worker that finds none free makes one more, so nobody waits for a buffer, and there are as many as
batches were ever on their way at once.

The file is no part of /dev/shm, which is small in containers. The training process has one descriptor of it
and two more for each worker, however many tensors a batch has. It ends with the last process that has it
open.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Value = Tensor | Sequence[Tensor]
"""A tensor of a batch, or the tensors of its samples, which are stacked where they travel."""
REGION = 1 << 38
"""The bytes of the file that belong to one worker. Only those in use take memory."""
EXTENT = 1 << 32
"""The bytes of its region that a worker maps at a time."""
FLAGS = 1 << 16
"""Bytes at the start of a region that hold its flags: one for each buffer, 1 while it is in use."""
ALIGNMENT = 64
ROOM = 1 << 20
"""Spare bytes in a buffer whose main tensor is written row by row, for the batch's other tensors. If they
need more, the batch is copied to another buffer."""
PAGE = mmap.PAGESIZE


class Field(NamedTuple):
    """Where a tensor lies in its buffer."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def of(self, buffer: Tensor) -> Tensor:
        return buffer[self.start : self.start + self.size].view(self.dtype).view(self.shape)

    def opened(self, buffer: NDArray[np.uint8]) -> Tensor:
        """Return the tensor with a storage of its own, which is all that travels where it is pickled. The
        buffer lasts as long as the tensor."""
        if not self.size:
            return torch.empty(self.shape, dtype=self.dtype)
        count = self.size // self.dtype.itemsize
        return torch.frombuffer(buffer, dtype=self.dtype, count=count, offset=self.start).view(self.shape)


class Extent(NamedTuple):
    """A part of the file that is mapped as one."""

    start: int
    size: int


@dataclass(frozen=True)
class SentBatch:
    """The message about a batch: short, whatever the batch holds."""

    memory: int
    worker: int
    number: int
    """The number of the buffer."""
    extent: Extent
    start: int
    """Where the buffer begins in its extent."""
    size: int
    fields: tuple[Field, ...]

    def pin_memory(self) -> dict[str, Tensor]:
        """Return the tensors in memory that a GPU reads itself; torch calls this in a thread."""
        return {name: tensor.pin_memory() for name, tensor in _opened[self.memory].open(self).items()}


class SharedFile:
    """An unnamed file that a process passes on to its workers when it starts them."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def __reduce__(self) -> tuple[Callable[[Any], SharedFile], tuple[Any]]:
        return _received, (DupFd(self.descriptor),)

    def map(self, extent: Extent) -> mmap.mmap:
        return mmap.mmap(self.descriptor, extent.size, offset=extent.start)


def _received(duplicate: Any) -> SharedFile:
    return SharedFile(duplicate.detach())


class BatchMemory:
    """The training process's side: the file, and the batches in it."""

    def __init__(self, workers: int) -> None:
        self.file = SharedFile(_unnamed_file())
        os.ftruncate(self.file.descriptor, workers * REGION)
        self.number = next(_numbers)
        _opened[self.number] = self
        self._extents: dict[Extent, NDArray[np.uint8]] = {}
        self._flags: dict[int, mmap.mmap] = {}

    def open(self, sent: SentBatch) -> dict[str, Tensor]:
        """Return the tensors of a batch by name. Their buffer is free when all of them are gone."""
        if sent.extent not in self._extents:
            self._extents[sent.extent] = np.frombuffer(self.file.map(sent.extent), np.uint8)
        if sent.worker not in self._flags:
            self._flags[sent.worker] = self.file.map(flags_of(sent.worker))
        buffer = self._extents[sent.extent][sent.start : sent.start + sent.size]
        flags = self._flags[sent.worker]
        weakref.finalize(buffer, flags.__setitem__, sent.number, 0).atexit = False
        return {field.name: field.opened(buffer) for field in sent.fields}


_numbers = count()
_opened: weakref.WeakValueDictionary[int, BatchMemory] = weakref.WeakValueDictionary()


@dataclass(frozen=True)
class BatchBuffer:
    """A worker's buffer for a batch: where it lies, and its bytes."""

    extent: Extent
    start: int
    bytes: Tensor

    @property
    def stop(self) -> int:
        return self.start + len(self.bytes)


@dataclass
class RowsInPlace:
    """A tensor that is written sample by sample into the buffer of the batch that is being made."""

    field: Field
    number: int
    """The number of the buffer."""
    tensor: Tensor
    """[samples, ...]: in the buffer."""
    given: int = 0

    def next(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the next row, if it is of that name and shape and there is one."""
        whole = Field(name, dtype, (len(self.tensor), *shape), 0)
        if whole != self.field or self.given == len(self.tensor):
            return None
        self.given += 1
        return self.tensor[self.given - 1]

    def are(self, value: Value | None) -> bool:
        """Whether the value is these rows, from the first on and without a gap."""
        if value is None or isinstance(value, Tensor) or len(value) > len(self.tensor):
            return False
        pairs = zip(value, self.tensor, strict=False)
        return all(_is_same(one, row) for one, row in pairs)


def _is_same(one: Tensor, row: Tensor) -> bool:
    return one.data_ptr() == row.data_ptr() and one.shape == row.shape and one.stride() == row.stride()


class WorkerMemory:
    """A worker's side: its buffers. `memory` is the number of the training process's side."""

    def __init__(self, file: SharedFile, memory: int, worker: int) -> None:
        self._file, self._memory, self._worker = file, memory, worker
        self._flags = file.map(flags_of(worker))
        self._buffers: dict[int, BatchBuffer] = {}
        self._extent = flags_of(worker)
        self._mapped: dict[Extent, mmap.mmap] = {}
        self._samples = 0
        self._rows: RowsInPlace | None = None

    def begin(self, samples: int) -> None:
        """Begin a batch of so many samples."""
        self._let_go()
        self._samples = samples

    def row(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """Return the next row of the first tensor that was asked for in this batch; None for another one, and
        when all rows were given."""
        if self._rows is None and self._samples:
            field = Field(name, dtype, (self._samples, *shape), 0)
            number = self._take(field.size + ROOM)
            self._rows = RowsInPlace(field, number, field.of(self._buffers[number].bytes))
        return None if self._rows is None else self._rows.next(name, shape, dtype)

    def place(self, values: Mapping[str, Value]) -> SentBatch:
        """Copy the values into a buffer, but for the rows that lie there; MemoryError where the worker's
        region is used up."""
        rows, number, done = self._rows, None, ""
        if rows is not None and rows.are(values.get(rows.field.name)):
            values = {rows.field.name: values[rows.field.name], **values}
            if layout(values)[1] <= len(self._buffers[rows.number].bytes):
                number, done, self._rows = rows.number, rows.field.name, None
        fields, size = layout(values)
        number = self._take(max(size, 1)) if number is None else number
        buffer = self._buffers[number]
        for field in fields:
            if field.name != done:
                fill(field.of(buffer.bytes), values[field.name])
        self._let_go()
        return SentBatch(self._memory, self._worker, number, buffer.extent, buffer.start, size, fields)

    def _let_go(self) -> None:
        """Free the buffer of rows that no batch took."""
        if self._rows is not None:
            self._flags[self._rows.number] = 0
        self._rows, self._samples = None, 0

    def _take(self, size: int) -> int:
        """Return the number of a buffer that was free, for so many bytes."""
        number = self._free(size)
        self._flags[number] = 1
        return number

    def _free(self, size: int) -> int:
        """Return the number of a free buffer for so many bytes: the smallest that is large enough, or a new
        one in place of all that are too small."""
        free = [number for number in self._buffers if not self._flags[number]]
        enough = [number for number in free if len(self._buffers[number].bytes) >= size]
        if enough:
            return min(enough, key=lambda number: len(self._buffers[number].bytes))
        for number in free:
            self._give_back(self._buffers.pop(number))
        number = next(number for number in range(FLAGS) if number not in self._buffers)
        self._buffers[number] = self._new(-(-size * 9 // 8 // PAGE) * PAGE)  # the next may be a little larger
        return number

    def _give_back(self, buffer: BatchBuffer) -> None:
        """Return a buffer's pages to the system."""
        if hasattr(mmap, "MADV_REMOVE"):
            self._mapped[buffer.extent].madvise(mmap.MADV_REMOVE, buffer.start, len(buffer.bytes))

    def _new(self, size: int) -> BatchBuffer:
        start = max((one.stop for one in self._buffers.values() if one.extent == self._extent), default=0)
        if self._extent not in self._mapped or start + size > self._extent.size:
            self._extent, start = Extent(self._extent.start + self._extent.size, max(EXTENT, size)), 0
            if self._extent.start + self._extent.size > (self._worker + 1) * REGION:
                raise MemoryError(f"the batches of a loader worker take {REGION >> 30} GB")
            self._mapped[self._extent] = self._file.map(self._extent)
        whole = np.frombuffer(self._mapped[self._extent], np.uint8)
        return BatchBuffer(self._extent, start, torch.from_numpy(whole[start : start + size]))


mine: WorkerMemory | None = None
"""The memory of this process, if it is a loader's worker."""


def keep(file: SharedFile, memory: int, worker: int) -> None:
    """Make this process a worker that places its batches in the file."""
    global mine
    mine = WorkerMemory(file, memory, worker)


def begin(samples: int) -> None:
    """Begin a batch of so many samples; in a worker `row` then gives its rows."""
    if mine is not None:
        mine.begin(samples)


def row(name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor for a value of the next sample, uninitialised: in a worker at its place in the batch
    that is being made, where a large value is so written without a copy."""
    found = None if mine is None else mine.row(name, shape, dtype)
    return torch.empty(*shape, dtype=dtype) if found is None else found


def flags_of(worker: int) -> Extent:
    return Extent(worker * REGION, FLAGS)


def layout(values: Mapping[str, Value]) -> tuple[tuple[Field, ...], int]:
    """Return where each value lies in a buffer, and the size of them all."""
    fields, end = [], 0
    for name, value in values.items():
        first = value if isinstance(value, Tensor) else value[0]
        shape = tuple(first.shape) if isinstance(value, Tensor) else (len(value), *first.shape)
        field = Field(name, first.dtype, shape, -(-end // ALIGNMENT) * ALIGNMENT)
        fields.append(field)
        end = field.start + field.size
    return tuple(fields), end


def fill(place: Tensor, value: Value) -> None:
    """Copy a value to its place."""
    if isinstance(value, Tensor):
        place.copy_(value)
    else:
        torch.stack(list(value), out=place)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tarmac-batches")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
