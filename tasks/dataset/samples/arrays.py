"""Named arrays out of an NPZ member held in memory, without unpickling and within a limit.

The limit holds for what is unpacked, whatever a header claims, so a bomb costs no more than that.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tasks.dataset.reasons import Reject

LARGEST_BYTES = 32 << 20
"""Of all of a sample's embeddings unpacked; MobileCLIP's have 0.2 MB."""
MOST_ENTRIES = 1000
CHUNK = 1 << 20
HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}

Arrays = Mapping[str, NDArray[Any]]


def unreadable(problem: str) -> Reject:
    return Reject("reinforcement.members", problem)


def bomb(what: str) -> Reject:
    return Reject("archive.bomb", f"{what} unpacks to more than {LARGEST_BYTES:,} bytes")


def read_npz(data: bytes) -> Arrays:
    """Every array of the file; Reject for one that is none, that holds objects, or that is too large."""
    arrays = {}
    total = 0
    for name, content in unzip(data, "npz").items():
        total += len(content)
        if total > LARGEST_BYTES:
            raise bomb("npz")
        if name.endswith(".npy"):
            arrays[name.removesuffix(".npy")] = _array(name, content)
    return arrays


def unzip(data: bytes, member: str) -> dict[str, bytes]:
    """The archive's entries by name; Reject when it is torn, encrypted, or too large in all."""
    entries: dict[str, bytes] = {}
    left = LARGEST_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if len(archive.infolist()) > MOST_ENTRIES:
                raise Reject("archive.bomb", f"{member} has {len(archive.infolist()):,} entries")
            for info in archive.infolist():
                with archive.open(info) as entry:
                    content = read_within(entry, left, member)
                left -= len(content)
                if info.filename in entries:
                    raise unreadable(f"{member} holds {info.filename!r} twice")
                entries[info.filename] = content
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError) as error:
        # RuntimeError: encrypted, or of a compression that zipfile does not know
        raise unreadable(f"{member} is no sound zip archive: {str(error)[:100]}") from None
    return entries


def read_within(file: IO[bytes], limit: int, member: str) -> bytes:
    """All of it; Reject when it is more than `limit` bytes, after no more than these."""
    parts: list[bytes] = []
    while part := file.read(CHUNK):
        limit -= len(part)
        if limit < 0:
            raise bomb(member)
        parts.append(part)
    return b"".join(parts)


def _array(name: str, content: bytes) -> NDArray[Any]:
    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        shape, fortran, dtype = HEADER_READERS[version](file)
    except MemoryError:
        raise  # of this host, not of the file
    except Exception as error:  # noqa: BLE001 - numpy raises whatever a torn header leads it to
        raise unreadable(f"{name} is no NPY array: {str(error)[:100]}") from None
    if dtype.hasobject:
        raise Reject("archive.unsafe", f"{name} holds Python objects, which are never unpickled")
    if dtype.kind not in "iuf" or min(shape, default=0) < 0:
        raise unreadable(f"{name} holds {dtype} in {shape}, not numbers")
    size = prod(shape) * dtype.itemsize
    if size != len(content) - file.tell():
        raise unreadable(f"{name} has {len(content) - file.tell():,} bytes for {size:,} in its header")
    array = np.frombuffer(content, dtype, offset=file.tell())
    return array.reshape(shape, order="F" if fortran else "C")
