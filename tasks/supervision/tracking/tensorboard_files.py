"""A run's rows as TensorBoard's event files: `tensorboard/train` and `tensorboard/eval`, one file each.

Format: TFRecord framing (https://www.tensorflow.org/tutorials/load_data/tfrecord) around `Event` messages,
whose classes tensorboardX brings; its own writer cannot go on with a file and computes CRCs in Python. The
first value of an event carries the row's uid in `node_name`, which no viewer reads, so the file shows which
rows it has. TensorBoard drops the points of a series that lie at or behind a new one's step. So a row that
comes late has the file written anew in the order of steps, under a later name; a viewer that is open takes
its first record for a restart at step 0 and forgets what it had. Each axis has a folder of its own, because
such a restart concerns a whole folder.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
from tensorboardX.proto.event_pb2 import Event, LogMessage, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from tasks.runs import metrics
from tasks.runs.folder import RunFolder

FOLDERS = {metrics.TRAIN_AXIS: "train", metrics.EVAL_AXIS: "eval"}
PREFIX = "events.out.tfevents."
DRAFT = ".draft"
HEADER = struct.Struct("<QI")
CHECKSUM = struct.Struct("<I")
EMPTY_S = 600.0
VERSION = "brain.Event:2"


class TensorBoardFiles:
    """The event files of one run; a tracker without a server."""

    url = None

    def __init__(self, run: RunFolder) -> None:
        self._files = {axis: EventFile(run.tensorboard / name) for axis, name in FOLDERS.items()}

    def recorded(self) -> dict[str, bool]:
        return {uid: whole for file in self._files.values() for uid, whole in file.recorded().items()}

    def log(self, row: Mapping[str, Any]) -> None:
        axis = metrics.axis_of(row)
        self._files[axis].add(_event(row, axis))

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        self.flush()


class EventFile:
    """The one event file of a folder. It is made when there is a first event."""

    def __init__(self, folder: Path) -> None:
        """Read the file that an earlier writer has left; nothing is changed before the first `flush`."""
        self._folder = folder
        self._added: list[Event] = []
        self._newest: dict[str, int] = {}
        """The last step of each series."""
        self._uids: set[str] = set()
        self._path: Path | None = None
        self._torn_at: int | None = None
        for newest in sorted(folder.glob(f"{PREFIX}*"))[-1:]:
            end, data = 0, newest.read_bytes()
            for end, event in _events(data):  # noqa: B007
                self._note(event)
            self._path = newest if end else None
            self._torn_at = end if end < len(data) else None

    def recorded(self) -> dict[str, bool]:
        """Read the uids in the file, each with whether its row has no null."""
        return {uid_of(event): _is_whole(event) for event in self._stored()}

    def add(self, event: Event) -> None:
        """Keep an event for the next `flush`."""
        self._added.append(event)

    def flush(self) -> None:
        """Append what was added with one write, or write the file anew where an event belongs further up."""
        added, self._added = self._added, []
        if not added:
            return
        is_late = False
        for event in added:
            is_late |= self._note(event)
        if self._path is None or is_late:
            self._write_anew(added)
        else:
            if self._torn_at is not None:
                os.truncate(self._path, self._torn_at)
            with self._path.open("ab", buffering=0) as file:
                file.write(b"".join(map(_framed, added)))
        self._torn_at = None

    def _note(self, event: Event) -> bool:
        """Remember an event's place; return whether it lies at or behind one that is there already."""
        uid, tags = uid_of(event), [value.tag for value in event.summary.value]
        is_late = uid in self._uids or any(event.step <= self._newest.get(tag, -1) for tag in tags)
        self._uids.add(uid)
        for tag in tags:
            self._newest[tag] = max(event.step, self._newest.get(tag, -1))
        return is_late

    def _write_anew(self, added: Iterable[Event]) -> None:
        """Replace the file by one with all events by step; of two with one uid the later counts."""
        by_uid = {uid_of(event): event for event in (*self._stored(), *added)}
        now = time.time()
        start = Event(wall_time=now, step=0, session_log=SessionLog(status=SessionLog.START))
        events = [Event(wall_time=now, file_version=VERSION), start]
        events += sorted(by_uid.values(), key=lambda event: event.step)
        self._folder.mkdir(parents=True, exist_ok=True)
        draft, old = self._folder / DRAFT, self._path
        with draft.open("wb") as file:
            file.writelines(map(_framed, events))
            file.flush()
            os.fsync(file.fileno())
        self._path = self._folder / _name_after(old)
        os.replace(draft, self._path)
        self._clear_away()

    def _clear_away(self) -> None:
        """Empty what was replaced, and remove it when each viewer has gone on to the next file: one whose
        file is gone does not."""
        for path in self._folder.glob(f"{PREFIX}*"):
            if path == self._path:
                continue
            if path.stat().st_size:
                os.truncate(path, 0)
            elif time.time() - path.stat().st_mtime > EMPTY_S:
                path.unlink()

    def _stored(self) -> Iterator[Event]:
        """The rows' events in the file."""
        found = () if self._path is None else _events(self._path.read_bytes())
        return (event for _, event in found if uid_of(event))


def uid_of(event: Event) -> str:
    """Return the uid of an event's row; empty for an event that is no row's."""
    values = event.summary.value
    return str(values[0].node_name if values else event.log_message.message)


def _event(row: Mapping[str, Any], axis: str) -> Event:
    """Return a row's numbers as an event; a null is a NaN, and a row without numbers a message."""
    values = [
        Summary.Value(tag=name, simple_value=math.nan if value is None else value)
        for name, value in row.items()
        if name not in ("uid", "t", axis) and not isinstance(value, str)
    ]
    place = {"wall_time": row.get("t") or time.time(), "step": int(row[axis])}
    if not values:
        return Event(**place, log_message=LogMessage(message=row["uid"]))
    values[0].node_name = row["uid"]
    return Event(**place, summary=Summary(value=values))


def _is_whole(event: Event) -> bool:
    return not any(math.isnan(value.simple_value) for value in event.summary.value)


def _name_after(old: Path | None) -> str:
    """A name that sorts behind the old one's; viewers read the files of a folder by name."""
    before = 0 if old is None else int(old.name.removeprefix(PREFIX).partition(".")[0])
    return f"{PREFIX}{max(time.time_ns(), before + 1):020d}.{socket.gethostname()}"


def _framed(event: Event) -> bytes:
    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    return b"".join((length, CHECKSUM.pack(_masked(length)), data, CHECKSUM.pack(_masked(data))))


def _events(data: bytes) -> Iterator[tuple[int, Event]]:
    """Each event of a file's content and where it ends, up to a torn or damaged one."""
    offset = 0
    while offset + HEADER.size <= len(data):
        length, checksum = HEADER.unpack_from(data, offset)
        begin, end = offset + HEADER.size, offset + HEADER.size + length + CHECKSUM.size
        if checksum != _masked(data[offset : offset + 8]) or end > len(data):
            return
        body = data[begin : begin + length]
        if CHECKSUM.unpack_from(data, begin + length)[0] != _masked(body):
            return
        yield end, Event.FromString(body)
        offset = end


def _masked(data: bytes) -> int:
    """The CRC32C as TFRecord stores it."""
    checksum = int(google_crc32c.value(data))
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
