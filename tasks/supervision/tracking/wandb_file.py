"""Reads `.wandb` files, the transaction logs of a wandb run, without importing wandb.

Format (wandb 0.31): a header `:W&B`, magic 0xBEE1, version 0; then LevelDB's log framing in blocks of 32 KiB
(https://github.com/google/leveldb/blob/main/doc/log_format.md), but with zlib's CRC-32 over type and data;
each record is a protobuf `Record` (wandb/proto/wandb_internal.proto). wandb ships no reader any more, and
importing its messages would cost a second and its start-up; the few fields needed here are decoded by hand.
A file whose writer was killed ends in a torn record; the records before it count. `wandb sync` refuses such
a file, so the torn record is cut off first.
"""

from __future__ import annotations

import json
import logging
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = 32768
HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

RECORD_HISTORY, RECORD_CONFIG, RECORD_METRIC, RECORD_RUN = 2, 5, 12, 17
ITEM_KEY, ITEM_NESTED_KEY, ITEM_VALUE = 1, 2, 16
METRIC_NAME, METRIC_GLOB, METRIC_AXIS = 1, 2, 4
RUN_CONFIG = 4
STEP = "_step"

Fields = list[tuple[int, bytes]]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WandbFile:
    """What one `.wandb` file holds. `axes` maps a metric's name or pattern to the axis it is drawn over.

    `rows` are the logged rows in order, without wandb's own keys (`_step`, `_timestamp`, `_runtime`);
    `next_step` lies above every `_step` of them, the key under which the server keeps a row.
    """

    rows: list[dict[str, Any]]
    next_step: int
    axes: dict[str, str]
    config: dict[str, Any]


def files_of(wandb: Path) -> list[Path]:
    """Return every `.wandb` file in a run's `wandb` folder, oldest first: one per gatherer."""
    found = wandb.glob("*run-*-*/run-*.wandb")
    return sorted(found, key=lambda path: path.parent.name.split("run-", 1)[1])


def synced_of(path: Path) -> Path:
    """Return the file beside a `.wandb` file that marks it as uploaded, as `wandb sync` names it."""
    return path.with_name(f"{path.name}.synced")


def read_wandb_file(path: Path) -> WandbFile:
    """Read the file up to its end or a torn record; ValueError when it is no `.wandb` file."""
    next_step = 0
    rows: list[dict[str, Any]] = []
    axes: dict[str, str] = {}
    config: dict[str, Any] = {}
    for record in records(path.read_bytes()):
        for number, body in fields(record):
            if number == RECORD_HISTORY:
                row = dict(_items(body, 1))
                next_step = max(next_step, int(row.get(STEP, -1)) + 1)
                rows.append({key: value for key, value in row.items() if not key.startswith("_")})
            elif number == RECORD_METRIC:
                metric = dict(fields(body))
                name = metric.get(METRIC_NAME) or metric.get(METRIC_GLOB, b"")
                axes[name.decode()] = metric.get(METRIC_AXIS, b"").decode()
            elif number == RECORD_RUN:
                for part in (part for inner, part in fields(body) if inner == RUN_CONFIG):
                    config.update(_items(part, 1))
            elif number == RECORD_CONFIG:
                config.update(_items(body, 1))
    return WandbFile(rows, next_step, axes, config)


def read_all(wandb: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of all files of a run, and the first `_step` above all of theirs.

    A damaged file counts as empty, and the log names it; one too short for its header was never written to.
    """
    rows: list[dict[str, Any]] = []
    next_step = 0
    for path in files_of(wandb):
        if path.stat().st_size < HEADER:
            continue
        try:
            found = read_wandb_file(path)
        except ValueError as error:
            logger.warning("%s counts as empty: %s", path, error)
            continue
        rows += found.rows
        next_step = max(next_step, found.next_step)
    return rows, next_step


def rows_of(wandb: Path) -> list[dict[str, Any]]:
    """Return the rows of all files of a run."""
    return read_all(wandb)[0]


def has_rows(path: Path) -> bool:
    """Whether there is anything in the file to upload; reads no further than its first row."""
    try:
        return any(
            number == RECORD_HISTORY for record in records(path.read_bytes()) for number, _ in fields(record)
        )
    except ValueError:
        return False


def cut_torn_end(path: Path) -> None:
    """Cut off the record that a killed writer left unfinished; a damaged one stays.

    The caller has to know that nobody writes to the file. ValueError when it is no `.wandb` file.
    """
    data = path.read_bytes()
    whole = max((end for end, _ in _scan(data)), default=HEADER)
    if _is_torn(data, whole):
        with path.open("r+b") as file:
            file.truncate(whole)


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file's content up to a torn or damaged one."""
    return (record for _, record in _scan(data))


def _scan(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each record and where it ends."""
    if len(data) < HEADER or struct.unpack("<4sHB", data[:HEADER])[:2] != (b":W&B", 0xBEE1):
        raise ValueError("this is no .wandb file")
    parts = b""
    for end, kind, body, is_sound in _parts(data, HEADER):
        if end > len(data) or not is_sound:
            return
        parts = body if kind in (FULL, FIRST) else parts + body
        if kind in (FULL, LAST):
            yield end, parts


def _parts(data: bytes, offset: int) -> Iterator[tuple[int, int, bytes, bool]]:
    """Each part of a record from `offset` on: where it ends, its kind, its body, and whether that is
    sound."""
    while (offset := _next_header(data, offset)) + HEADER <= len(data):
        checksum, length, kind = struct.unpack("<IHB", data[offset : offset + HEADER])
        body = data[offset + HEADER : offset + HEADER + length]
        offset += HEADER + length
        yield offset, kind, body, zlib.crc32(body, zlib.crc32(bytes([kind]))) == checksum


def _next_header(data: bytes, offset: int) -> int:
    """Where the next part of a record begins: behind the padding at the end of a block."""
    while offset + HEADER <= len(data):
        left = BLOCK - offset % BLOCK
        if left >= HEADER and data[offset + 4 : offset + HEADER] != bytes(3):
            break
        offset += left
    return offset


def _is_torn(data: bytes, whole: int) -> bool:
    """Whether what follows the last whole record, which ends at `whole`, is the sound beginning of one."""
    is_damaged = any(end <= len(data) and not is_sound for end, _, _, is_sound in _parts(data, whole))
    return len(data) > whole and not is_damaged


def fields(message: bytes) -> Fields:
    """Return the length-delimited fields of a protobuf message, in order; numbers are skipped.

    https://protobuf.dev/programming-guides/encoding/
    """
    found, offset = [], 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            _, offset = _varint(message, offset)
        elif wire == 1:
            offset += 8
        elif wire == 5:
            offset += 4
        elif wire == 2:
            length, offset = _varint(message, offset)
            found.append((number, message[offset : offset + length]))
            offset += length
        else:
            raise ValueError(f"wire type {wire} is no protobuf of today")
    return found


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7


def _items(message: bytes, number: int) -> list[tuple[str, Any]]:
    """The key-value items that are field `number` of a message; nested keys are joined by `/`."""
    pairs = []
    for found, body in fields(message):
        if found != number:
            continue
        item = fields(body)
        key = next((value.decode() for inner, value in item if inner == ITEM_KEY), "")
        key = key or "/".join(value.decode() for inner, value in item if inner == ITEM_NESTED_KEY)
        value = next((value for inner, value in item if inner == ITEM_VALUE), b"null")
        pairs.append((key, json.loads(value)))
    return pairs
