"""Whose fault a failure is: the data's, or this host's, which had no room, no rights or no answer for them.

What fails for the host's sake says nothing of the data, so no sample is set aside for it.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator

from tasks.core.errors import TarmacError
from tasks.core.files import FULL
from tasks.core.stores import Unreachable
from tasks.dataset.rejects import TRANSIENT

GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
"""What the system says of data that are not there, or not what they were."""
_WORDS = {os.strerror(code) for code in errno.errorcode if code not in GONE}


def is_of_host(error: BaseException) -> bool:
    """Whether the error, or one that it came of, is the host's."""
    return any(map(_is_of_host, _chain(error)))


def is_of_full_disk(error: BaseException) -> bool:
    return any(
        (isinstance(one, OSError) and one.errno in FULL)
        or (isinstance(one, sqlite3.OperationalError) and "disk is full" in str(one))
        for one in _chain(error)
    )


def is_reject_of_host(reason: str, detail: str) -> bool:
    """Whether a raw sample was rejected because the system did not give its bytes."""
    return reason == TRANSIENT and detail in _WORDS


def worded(error: Exception) -> str:
    """The file and the cause."""
    if isinstance(error, OSError) and not isinstance(error, TarmacError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _is_of_host(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno not in GONE and (error.errno is not None or isinstance(error, Unreachable))
    return isinstance(error, MemoryError | sqlite3.OperationalError)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
