"""One damaged shard made whole, in a worker process: what is sound of it, the rest converted again.

Samples that kept their bytes are copied, so that only the others need their source. The tar is proven by its
BLAKE3 before it gets a name that anybody takes it by.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal
from uuid import uuid4

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tasks.core.errors import TarmacError
from tasks.core.files import CHUNK
from tasks.core.stores import LocalStore
from tasks.dataset.build.convert import Conversion, convert
from tasks.dataset.build.staging import staged, tar_path
from tasks.dataset.repair.cause import is_of_full_disk, is_of_host, is_reject_of_host, worded
from tasks.dataset.tar.writer import END

Fault = Literal["unread", "rejected", "changed", "other"]


@dataclass(frozen=True)
class Mending:
    """A shard of this BLAKE3, to become `good`.

    `spans` are offset, length and CRC32C of each sample, `contents` the digests of their raw members (None
    where nobody knows), `sound` says which of them can be copied out of `damaged`. The others are the entries
    of leaf `ordinal` in the catalogue of `staging`, in order.
    """

    name: str
    blake3: str
    good: Path
    damaged: Path
    spans: NDArray[np.int64]
    contents: list[bytes | None]
    sound: list[bool]
    staging: Path
    rules: str
    ordinal: int | None


@dataclass(frozen=True)
class Mended:
    """Whether the shard is whole; else its samples (by row) that are not what they were, and how, or the
    trouble that it had as a whole. `is_of_host` says that it may be made once the host is well."""

    name: str
    is_whole: bool
    faults: tuple[tuple[int, Fault, str], ...] = ()
    trouble: str = ""
    is_of_host: bool = False


def mend(task: Mending) -> Mended:
    """Make the shard, unless its samples come out otherwise than they were.

    OSError, DataError or sqlite3.OperationalError where the disk is full, as it then is for all shards.
    """
    try:
        table = None
        if task.ordinal is not None:
            convert(Conversion(task.staging, task.rules, task.ordinal))
            table = staged(task.staging, task.blake3)
        faults = tuple(_faults(task, table))
        if faults:
            is_unread = any(kind == "unread" for _, kind, _ in faults)
            return Mended(task.name, False, faults, is_of_host=is_unread)
        return _joined(task, table)
    except (TarmacError, OSError) as error:
        if is_of_full_disk(error):
            raise
        return Mended(task.name, False, trouble=worded(error), is_of_host=is_of_host(error))


def _needed(task: Mending) -> list[int]:
    return [row for row, is_sound in enumerate(task.sound) if not is_sound]


def _faults(task: Mending, table: Any) -> Iterator[tuple[int, Fault, str]]:
    """The samples that became something else than what they were."""
    columns = ["reason", "detail", "content", "length", "crc32c"]
    rows = [] if table is None else table.select(columns).to_pylist()
    for row, made in zip(_needed(task), rows, strict=True):
        if made["reason"] is not None:
            kind: Fault = "unread" if is_reject_of_host(made["reason"], made["detail"]) else "rejected"
            yield row, kind, f"{made['reason']}, {made['detail']}"
        elif (made["length"], made["crc32c"]) != tuple(map(int, task.spans[row][1:])):
            is_as_it_was = task.contents[row] in (None, made["content"])
            yield row, "other" if is_as_it_was else "changed", ""


def _joined(task: Mending, table: Any) -> Mended:
    """Write the tar from its own bytes and the staged ones, and prove it."""
    offsets = iter([] if table is None else table.column("offset").to_pylist())
    own = _opened(task.damaged) if any(task.sound) else None
    new = None if table is None else tar_path(task.staging, task.blake3).open("rb")
    temporary = task.good.with_name(f".{task.good.name}.{uuid4().hex}")
    digest = blake3()
    try:
        with temporary.open("wb") as file:
            for (offset, length, _), is_sound in zip(task.spans.tolist(), task.sound, strict=True):
                source, start = (own, offset) if is_sound else (new, next(offsets))
                assert source is not None
                for chunk in _chunks(source, start, length):
                    digest.update(chunk)
                    file.write(chunk)
            digest.update(END)
            file.write(END)
            file.flush()
            os.fsync(file.fileno())
        if digest.hexdigest() != task.blake3:
            return Mended(task.name, False, trouble="its samples are as they were, but not the tar of them")
        os.replace(temporary, task.good)
    finally:
        temporary.unlink(missing_ok=True)  # where the disk is full, it must not keep it so
        for opened in (own, new):
            if opened is not None:
                opened.close()
        tar_path(task.staging, task.blake3).unlink(missing_ok=True)
    return Mended(task.name, True)


def _opened(path: Path) -> BinaryIO:
    return LocalStore(str(path.parent)).open(path.name)


def _chunks(file: BinaryIO, offset: int, length: int) -> Iterator[bytes]:
    end = offset + length
    while offset < end:
        chunk = os.pread(file.fileno(), min(CHUNK, end - offset), offset)
        if not chunk:
            raise OSError(f"{file.name} has become shorter")
        offset += len(chunk)
        yield chunk
