"""A file that is not there is one sample's fault; that the whole source is gone is no sample's.

A build hands out samples to machines of which one may have lost the mount. What it rejected would stay
rejected, because files that are not there are not asked for again.
"""

from __future__ import annotations

import os
import socket
from types import TracebackType

from tasks.core.errors import DataError
from tasks.core.stores import Store, is_remote
from tasks.dataset.rejects import Reject

DOUBTFUL = ("member.missing", "source.unreadable")


class Needed:  # made for every sample, in a quarter of the time that a generator takes
    """While the block runs: a Reject of a file that cannot be had passes, but is a DataError where all of the
    store is gone."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Reject) and error.reason in DOUBTFUL and not _is_there(self._store):
            raise DataError(
                f"{self._store.location} is not there any more on {socket.gethostname()} (removed, or not "
                "mounted); bring it back and run again, the current version stays as it was"
            ) from None


def _is_there(store: Store) -> bool:
    """A folder that is not mounted is often there, and empty. A remote one says so by itself."""
    if is_remote(store.location):
        return True
    try:
        with os.scandir(store.location) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
