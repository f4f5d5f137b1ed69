"""Unpacks zip archives and gzip files made by others, within limits.

Only the compressions that numpy and torch use are read: bzip2 and LZMA may unpack any amount in one call,
however little is requested, while deflated and stored entries return no more than requested. The limit
applies to unpacked bytes, whatever a header claims, so a bomb costs no more than the limit.
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
from tasks.dataset.version.rejects import Reason, Reject

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MOST_ENTRIES = 1000


@contextmanager
def opened(file: IO[bytes], name: str, unsound: Reason) -> Iterator[zipfile.ZipFile]:
    """Open the archive in `file`. A torn or encrypted archive, even if that shows only while it is read, is a
    Reject with the reason `unsound` that names it `name`. Other OSErrors pass through."""
    try:
        with zipfile.ZipFile(file) as archive:
            _check(archive, name, unsound)
            yield archive
    except OSError as error:
        if error.errno != errno.EINVAL or isinstance(error, StoreUnreachable):
            raise
        raise Reject(unsound, f"{name} is not a sound zip archive: its parts lie outside of it") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        # RuntimeError: encrypted, or a version that zipfile does not know
        raise Reject(unsound, f"{name} is not a sound zip archive: {str(error)[:100]}") from None


def _check(archive: zipfile.ZipFile, name: str, unsound: Reason) -> None:
    entries = archive.infolist()
    if len(entries) > MOST_ENTRIES:
        raise Reject("archive.bomb", f"{name} has {len(entries):,} entries")
    for entry in entries:
        if entry.compress_type not in COMPRESSIONS:
            problem = "is compressed as neither numpy nor torch does"
            raise Reject(unsound, f"{name}: {entry.filename[:80]!r} {problem}")


def unpack(content: bytes, name: str, unsound: Reason, limit: int) -> dict[str, bytes]:
    """Return the archive's entries; Reject like `opened`, and for more than `limit` bytes in all."""
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
    """Return a zip archive of uncompressed entries."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return file.getvalue()


def gunzip(content: bytes, name: str, unsound: Reason, limit: int) -> bytes:
    """Unpack a gzip file; Reject if it is torn or unpacks to more than `limit` bytes."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return b"".join(parts(cast(IO[bytes], file), name, limit))
    except (OSError, EOFError, zlib.error) as error:
        raise Reject(unsound, f"{name} is not a sound gzip file: {str(error)[:100]}") from None


def parts(file: IO[bytes], name: str, limit: int, left: int | None = None) -> Iterator[bytes]:
    """Yield what is unpacked from `file`, part by part. Reject for more than `left` bytes, the part of
    `limit` that is left, or for more than `limit` if `left` is not given."""
    left = limit if left is None else left
    while part := file.read(CHUNK):
        left -= len(part)
        if left < 0:
            raise Reject("archive.bomb", f"{name} unpacks to more than {limit:,} bytes")
        yield part
