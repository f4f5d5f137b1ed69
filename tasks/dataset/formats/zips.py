"""Zip archives made by others, as NPZ and torch files are, opened within limits.

Only what numpy and torch write is read: bzip2 and LZMA may unpack any amount at one go, however little is
asked for, while deflate and plain members give no more than that.
"""

from __future__ import annotations

import errno
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tasks.core.stores import Unreachable
from tasks.dataset.rejects import Reason, Reject

COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
MOST_ENTRIES = 1000


@contextmanager
def opened(file: IO[bytes], name: str, unsound: Reason) -> Iterator[zipfile.ZipFile]:
    """The archive in `file`; a Reject for the reason `unsound` that says `name`, also for what is found torn
    or encrypted while it is read. Other OSErrors pass."""
    try:
        with zipfile.ZipFile(file) as archive:
            _check(archive, name, unsound)
            yield archive
    except OSError as error:
        if error.errno != errno.EINVAL or isinstance(error, Unreachable):
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
