"""A file that is not there is one sample's fault; that the whole source is gone is no sample's.

A build hands out samples to machines of which one may have lost the mount. What it rejected would stay
rejected, because files that are not there are not asked for again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.core.addresses import is_remote
from tasks.core.errors import DataError
from tasks.core.stores import Store
from tasks.dataset.reasons import Reject

DOUBTFUL = ("member.missing", "source.unreadable")


@contextmanager
def needed(store: Store) -> Iterator[None]:
    """A Reject of a file that cannot be had passes, but is a DataError where all of the store is gone."""
    try:
        yield
    except Reject as reject:
        if reject.reason in DOUBTFUL and not _is_there(store):
            raise DataError(
                f"{store.location} is not there any more on {socket.gethostname()} (removed, or not "
                "mounted); bring it back and run again, the current version stays as it was"
            ) from None
        raise


def _is_there(store: Store) -> bool:
    """A folder that is not mounted is often there, and empty. A remote one says so by itself."""
    if is_remote(store.location):
        return True
    try:
        with os.scandir(store.location) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
