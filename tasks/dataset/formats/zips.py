"""Zip archives and gzip made by others, unpacked within limits.

Only what numpy and torch write is read: bzip2 and LZMA may unpack any amount at one go, however little is
asked for, while deflate and plain members give no more than that. A limit holds for what is unpacked,
whatever a header claims, so a bomb costs no more than the limit.
"""

from __future__ import annotations

import errno
import gzip
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, cast

from tasks.core.files import CHUNK
from tasks.core.stores import StoreUnreachable
from tasks.dataset.rejects import Reason, Reject

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MOST_ENTRIES = 1000


@contextmanager
def opened(file: IO[bytes], name: str, unsound: Reason) -> Iterator[zipfile.ZipFile]:
    """The archive in `file`. What is torn or encrypted, also where that shows only while it is read, is a
    Reject for the reason `unsound` that names the archive as `name`. Other OSErrors pass."""
    try:
        with zipfile.ZipFile(file) as archive:
            _check(archive, name, unsound)
            yield archive
    except OSError as error:
        if error.errno != errno.EINVAL or isinstance(error, StoreUnreachable):
            raise
        raise Reject(unsound, f"{name} is no sound zip archive: its parts lie outside of it") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        # RuntimeError: encrypted, or of a version that zipfile does not know
        raise Reject(unsound, f"{name} is no sound zip archive: {str(error)[:100]}") from None


def _check(archive: zipfile.ZipFile, name: str, unsound: Reason) -> None:
    entries = archive.infolist()
    if len(entries) > MOST_ENTRIES:
        raise Reject("archive.bomb", f"{name} has {len(entries):,} entries")
    for entry in entries:
        if entry.compress_type not in COMPRESSIONS:
            problem = "is compressed as neither numpy nor torch does"
            raise Reject(unsound, f"{name}: {entry.filename[:80]!r} {problem}")


def unpack(content: bytes, name: str, unsound: Reason, limit: int) -> dict[str, bytes]:
    """The archive's entries; Reject as `opened`, and for more than `limit` bytes in all."""
    entries: dict[str, bytes] = {}
    left = limit
    with opened(io.BytesIO(content), name, unsound) as archive:
        for info in archive.infolist():
            if info.filename in entries:
                raise Reject(unsound, f"{name} holds {info.filename[:80]!r} twice")
            with archive.open(info) as entry:
                entries[info.filename] = b"".join(parts(entry, name, limit, left))
            left -= len(entries[info.filename])
    return entries


def pack(entries: Mapping[str, bytes]) -> bytes:
    """A zip archive of uncompressed entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def gunzip(content: bytes, name: str, unsound: Reason, limit: int) -> bytes:
    """What a gzip file holds; Reject when it is torn, or more than `limit` bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return b"".join(parts(cast(IO[bytes], file), name, limit))
    except (OSError, EOFError, zlib.error) as error:
        raise Reject(unsound, f"{name} is no sound gzip: {str(error)[:100]}") from None


def parts(file: IO[bytes], name: str, limit: int, left: int | None = None) -> Iterator[bytes]:
    """What is unpacked from `file`, part by part; Reject for more than `left` of `limit` bytes, or than
    `limit`."""
    left = limit if left is None else left
    while part := file.read(CHUNK):
        left -= len(part)
        if left < 0:
            raise Reject("archive.bomb", f"{name} unpacks to more than {limit:,} bytes")
        yield part
