"""One array out of an NPZ file, without ever running what is in it.

numpy's own loader unpickles object arrays when asked to and reads whatever size a header claims. Here an
object array is refused by its header, and a member is read only as far as its header says, within a limit.
"""

from __future__ import annotations

import errno
import zipfile
import zlib
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tasks.dataset.reasons import Reject
from tasks.dataset.sources.source import open_file

LARGEST_BYTES = 4 << 30
"""A volume of 512 x 512 x 2,000 in float64 fits."""
MAX_ARRAYS = 1000
LONGEST_HEADER = 1 << 14
HEADER_READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
PICKLE_MAGIC = b"\x80"


@dataclass(frozen=True)
class ArrayHeader:
    """What an NPY member says of itself."""

    member: str
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int
    """Bytes before the first number."""

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def read_array(path: Path, name: str | None) -> NDArray[Any]:
    """The array `name`, or the file's only 3D array; Reject when there is none that is safe to read."""
    try:
        with open_file(path) as file, _open(file) as archive:
            header = _choose(archive, name)
            with archive.open(header.member) as member:
                return _read(member, header)
    except OSError as error:
        if error.errno == errno.EINVAL:  # a torn archive that points before its own start
            raise Reject("volume.undecodable", "no NPZ file: its parts lie outside of it") from None
        raise Reject("source.unreadable", error.strerror or type(error).__name__) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        # RuntimeError: encrypted, or of a compression that zipfile does not know
        raise Reject("volume.undecodable", str(error)) from None


def peek(path: Path, name: str | None) -> ArrayHeader:
    """The header of the array that `read_array` would read."""
    with open_file(path) as file, _open(file) as archive:
        return _choose(archive, name)


def _open(file: IO[bytes]) -> zipfile.ZipFile:
    start = file.read(4)
    if start.startswith(PICKLE_MAGIC):
        raise Reject("volume.pickle", "the file is a pickle, which is never opened")
    if not start:
        raise Reject("volume.undecodable", "the file is empty")
    if not start.startswith(b"PK"):
        raise Reject("volume.undecodable", "no NPZ file: it does not start like a zip archive")
    file.seek(0)
    return zipfile.ZipFile(file)


def _choose(archive: zipfile.ZipFile, name: str | None) -> ArrayHeader:
    entries = archive.infolist()
    if len(entries) > MAX_ARRAYS:
        raise Reject("archive.bomb", f"{len(entries):,} members in one file")
    if name is not None:
        if name + ".npy" not in archive.namelist():
            there = ", ".join(sorted(entry.filename.removesuffix(".npy") for entry in entries)[:8])
            raise Reject("member.missing", f"no array {name!r} (it has: {there or 'none'})")
        return _header(archive, name + ".npy")
    headers = [_header(archive, entry.filename) for entry in entries if entry.filename.endswith(".npy")]
    volumes = [header for header in headers if len(header.shape) == 3 and not header.dtype.hasobject]
    candidates = volumes or headers
    if len(candidates) != 1:
        there = ", ".join(f"{header.member.removesuffix('.npy')} {header.shape}" for header in headers[:8])
        raise Reject("volume.shape", f"{len(volumes)} 3D arrays ({there}); name one as source.array")
    return candidates[0]


def _header(archive: zipfile.ZipFile, member: str) -> ArrayHeader:
    with archive.open(member) as file:
        return _parse(file, member)


def _parse(file: IO[bytes], member: str) -> ArrayHeader:
    start = BytesIO(file.read(LONGEST_HEADER))  # version 2 lets a header claim to be gigabytes long
    try:
        version = npy.read_magic(start)
        if version not in HEADER_READERS:
            raise ValueError(f"NPY version {version}")
        shape, fortran, dtype = HEADER_READERS[version](start)
        if any(side < 0 for side in shape):
            raise ValueError(f"shape {shape}")
    except MemoryError:
        raise  # of this host, not of the file
    except Exception as error:  # noqa: BLE001 - numpy raises whatever a torn header leads it to
        raise Reject("volume.undecodable", f"{member} is no NPY array: {str(error)[:200]}") from None
    return ArrayHeader(member, shape, fortran, dtype, start.tell())


def _read(member: IO[bytes], header: ArrayHeader) -> NDArray[Any]:
    if header.dtype.hasobject:
        raise Reject("volume.pickle", f"{header.member} holds Python objects, which are never unpickled")
    if header.size_bytes > LARGEST_BYTES:
        raise Reject("archive.bomb", f"shape {header.shape} in {header.dtype}: {header.size_bytes:,} bytes")
    if header.dtype.kind not in "iuf":
        raise Reject("volume.dtype", f"{header.member} holds {header.dtype}, not numbers")
    member.read(header.offset)
    array = np.empty(prod(header.shape), header.dtype)
    view = array.view(np.uint8).data if array.size else memoryview(b"")
    filled = 0
    while filled < len(view):
        count = member.readinto(view[filled : filled + (1 << 24)])  # type: ignore[attr-defined]
        if not count:
            raise Reject(
                "volume.undecodable", f"{header.member} ends after {filled:,} of {len(view):,} bytes"
            )
        filled += count
    if member.read(1):  # also makes zipfile compare the member's CRC
        raise Reject("archive.bomb", f"{header.member} goes on after its {len(view):,} bytes")
    return array.reshape(header.shape, order="F" if header.fortran else "C")
