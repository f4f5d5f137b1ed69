"""What each loader worker is doing, in a file that other processes read while the worker lives and after it
was killed.

A worker maps its file into memory and changes it in place: a transition costs no system call, and what was
written is there whatever ends the process. `mine` is the record of this process. Until `keep` gives it a
file, it writes to memory that nobody reads, so that no caller has to ask. One writer and any number of
readers agree by a counter that is odd while a change is under way.

This module is free of torch, because whoever examines a stuck training needs none.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from tasks.core.process import Identity

MAGIC = b"TARMACW2"
PATTERN = "rank_*_worker_*"
NONE = -1
SHARD_BYTES = 128
LOOK_AGAIN_S, PATIENCE_S = 0.0001, 0.5
"""A change takes a microsecond, unless its writer has to wait for a core in the middle of it."""
logger = logging.getLogger(__name__)
P = ParamSpec("P")
R = TypeVar("R")


class WorkerStage(IntEnum):
    """What a worker is doing."""

    START = 0
    """Nothing was requested from it yet."""
    OPEN = 1
    READ = 2
    """It reads a sample's bytes; in a stream, also those that fill its shuffle buffer."""
    DECODE = 3
    TRANSFORM = 4
    COLLATE = 5
    HAND_OVER = 6
    """Its batch is made and on its way, or it waits for the next request."""

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class Record(ctypes.LittleEndianStructure):
    """The layout of the file, byte for byte. Text is UTF-8, ended by a zero byte where it is shorter than its
    field."""

    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("changes", ctypes.c_uint64),
        ("pid", ctypes.c_int64),
        ("ticks", ctypes.c_int64),
        ("started", ctypes.c_double),
        ("host", ctypes.c_char * 64),
        ("boot_id", ctypes.c_char * 40),
        ("namespace", ctypes.c_char * 32),
        ("rank", ctypes.c_int32),
        ("worker", ctypes.c_int32),
        ("split", ctypes.c_char * 32),
        ("stage", ctypes.c_int64),
        ("since", ctypes.c_double),
        ("row", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("read", ctypes.c_uint64),
        ("dropped", ctypes.c_uint64),
        ("refused", ctypes.c_uint64),
        ("delivered", ctypes.c_uint64),
        ("batches", ctypes.c_uint64),
        ("seconds", ctypes.c_double * len(WorkerStage)),
        ("shard", ctypes.c_char * SHARD_BYTES),
    )
    magic: bytes
    changes: int
    pid: int
    ticks: int
    started: float
    host: bytes
    boot_id: bytes
    namespace: bytes
    rank: int
    worker: int
    split: bytes
    stage: int
    since: float
    row: int
    offset: int
    read: int
    dropped: int
    refused: int
    delivered: int
    batches: int
    seconds: ctypes.Array[ctypes.c_double]
    shard: bytes


@dataclass(frozen=True)
class WorkerState:
    """A snapshot of a worker; `rank_R` itself is worker 0 of a training without workers.

    `shard` is `train/000007.tar`, and empty before the first one. `offset` is the byte in the shard at which
    the sample begins that is being read or was read last; in a stream it is how far the file has been read.
    `row` is the sample's row in the split's index, None in a stream. `read` counts samples, of which
    `dropped` were bad, and `delivered` samples left in `batches`. `refused` counts pictures that the quickest
    decoder refused and another one decoded. `since` (Unix seconds) is when the current
    stage began, and `seconds` are those spent in every stage before.
    """

    identity: Identity
    rank: int
    worker: int
    split: str
    stage: WorkerStage
    since: float
    shard: str
    row: int | None
    offset: int | None
    read: int
    dropped: int
    refused: int
    delivered: int
    batches: int
    seconds: Mapping[WorkerStage, float]


class Writer:
    """The only writer of one record. Each method is a transition and sets when the stage began."""

    def __init__(self, record: Record) -> None:
        self._record = record
        record.since = time.time()

    def enter(self, stage: int) -> int:
        """Enter a stage; returns the one before, for a caller that goes back to it."""
        record = self._record
        now = time.time()
        before = record.stage
        record.changes += 1
        record.seconds[before] += now - record.since
        record.stage = stage
        record.since = now
        record.changes += 1
        return before

    def opening(self, shard: bytes) -> None:
        """Record that it opens a shard, named as `shard_field` encodes it."""
        record = self._record
        record.changes += 1
        record.shard, record.row, record.offset = shard, NONE, NONE
        record.changes += 1
        self.enter(WorkerStage.OPEN)

    def reading(self, shard: bytes, row: int, offset: int) -> None:
        """Record that it reads the sample at byte `offset` of a shard."""
        record = self._record
        record.changes += 1
        record.shard, record.row, record.offset = shard, row, offset
        record.changes += 1
        self.enter(WorkerStage.READ)

    def streaming(self, shard: bytes, offset: int) -> None:
        """Count a sample of a stream, which ends at about byte `offset`."""
        record = self._record
        record.changes += 1
        record.read += 1
        record.shard, record.row, record.offset = shard, NONE, offset
        record.changes += 1

    def counting(self) -> None:
        """Count a sample."""
        self._record.read += 1

    def transforming(self) -> None:
        """Record that the sample was read."""
        self.counting()
        self.enter(WorkerStage.TRANSFORM)

    def dropping(self) -> None:
        """Record that the sample is bad."""
        self._record.dropped += 1

    def refusing(self) -> None:
        """Record that a decoder refused a picture, which another one decoded."""
        self._record.refused += 1

    def handing_over(self, samples: int) -> None:
        """Record that a batch of so many samples is made."""
        record = self._record
        record.changes += 1
        record.delivered += samples
        record.batches += 1
        record.changes += 1
        self.enter(WorkerStage.HAND_OVER)


NOBODY = Writer(Record())
mine = NOBODY


@dataclass(frozen=True)
class WorkerStates:
    """Where the workers of one rank keep their state, for one split that they read."""

    folder: Path
    rank: int
    split: str

    def path(self, worker: int) -> Path:
        return self.folder / f"rank_{self.rank}_worker_{worker}.{self.split}"

    def keep(self, worker: int) -> Writer:
        """Return the writer of a new file, which becomes `mine`. Where there is no room for a file, return
        the present one: a training does not end for that."""
        global mine
        path = self.path(worker)
        try:
            record = _new_record(path)
        except OSError as error:
            logger.warning("%s: no state is kept of this worker (%s)", path, error)
            return mine
        me = Identity.mine()
        record.pid, record.started, record.host = me.pid, me.started, me.host.encode()[:64]
        record.ticks = NONE if me.ticks is None else me.ticks
        record.boot_id, record.namespace = me.boot_id.encode()[:40], (me.namespace or "").encode()[:32]
        record.rank, record.worker, record.split = self.rank, worker, self.split.encode()[:32]
        record.row = record.offset = NONE
        mine = Writer(record)
        record.magic = MAGIC
        return mine


def shard_field(name: str) -> bytes:
    """Encode `train/000007.tar` for a record; of a name that is too long only the end is kept."""
    return name.encode()[-SHARD_BYTES:]


def take_up(writer: Writer) -> None:
    """Make this writer `mine`, where one process reads for several workers."""
    global mine
    mine = writer


def decoding(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function so wrapped that, called in a transform, it is recorded as stage DECODE."""

    @wraps(function)
    def staged(*args: P.args, **kwargs: P.kwargs) -> R:
        writer = mine
        before = writer.enter(WorkerStage.DECODE)
        try:
            return function(*args, **kwargs)
        finally:
            writer.enter(before)

    return staged


def read_state(path: Path) -> WorkerState | None:
    """Return what the worker recorded last; None where there is no complete record, as while the worker
    starts. A worker that was killed in the middle of a change left the record as it stands."""
    try:
        record = _settled(path)
    except OSError:
        return None
    if record is None or record.magic != MAGIC or record.stage not in list(WorkerStage):
        return None
    started = record.pid, record.started, None if record.ticks == NONE else record.ticks
    identity = Identity(_text(record.host), _text(record.boot_id), *started, _text(record.namespace) or None)
    return WorkerState(
        identity=identity,
        rank=record.rank,
        worker=record.worker,
        split=_text(record.split),
        stage=WorkerStage(record.stage),
        since=record.since,
        shard=_text(record.shard),
        row=None if record.row == NONE else record.row,
        offset=None if record.offset == NONE else record.offset,
        read=record.read,
        dropped=record.dropped,
        refused=record.refused,
        delivered=record.delivered,
        batches=record.batches,
        seconds=dict(zip(WorkerStage, record.seconds, strict=True)),
    )


def read_all(folder: Path) -> list[WorkerState]:
    """Return the states of all workers that keep theirs in `folder`, living or dead, by rank, split and
    number."""
    states = (read_state(path) for path in folder.glob(PATTERN))
    known = [state for state in states if state is not None]
    return sorted(known, key=lambda state: (state.rank, state.split, state.worker))


def clear(folder: Path, rank: int) -> None:
    """Remove what the workers of an earlier start of the rank left."""
    for path in folder.glob(f"rank_{rank}_worker_*"):
        path.unlink(missing_ok=True)


def _new_record(path: Path) -> Record:
    """Make a new file, so that a reader of the old one sees the last state of the old worker."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    size = ctypes.sizeof(Record)
    with draft.open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)  # a write to a mapped hole of a full disk kills
        mapped = mmap.mmap(file.fileno(), size)
    os.replace(draft, path)
    return Record.from_buffer(mapped)


def _settled(path: Path) -> Record | None:
    """Return the record between two changes; or as it stands when a change does not end because its writer is
    dead."""
    size = ctypes.sizeof(Record)
    with path.open("rb", buffering=0) as file:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            before, data, after = (os.pread(file.fileno(), size + 1, 0) for _ in range(3))
            if len(data) != size:
                return None
            record = Record.from_buffer_copy(data)
            is_whole = _changes(before) == record.changes == _changes(after) and record.changes % 2 == 0
            if is_whole or time.monotonic() > deadline:
                return record
            time.sleep(LOOK_AGAIN_S)


def _changes(data: bytes) -> int:
    place = Record.changes.offset  # type: ignore[attr-defined]
    return int.from_bytes(data[place : place + 8], "little")


def _text(field: bytes) -> str:
    return field.decode("utf-8", errors="replace")
