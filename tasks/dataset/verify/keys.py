"""The keys of tars, read again from the tars themselves where no table has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np

from tasks.core.stores import Unreachable
from tasks.dataset.verify.members import Members
from tasks.dataset.verify.place import opened
from tasks.dataset.verify.reader import Reader
from tasks.dataset.verify.walk import Plain, Walk

MOST_TARS = 1000
"""That are read again; findings on others do without the key."""


def keys_in(folder: str, wanted: Mapping[str, Collection[int]]) -> Iterator[tuple[str, str]]:
    """The keys of these tars, each with its tar's name; none of a tar that is gone by now."""
    for name in sorted(wanted)[:MOST_TARS]:
        try:
            with opened(folder, name) as file:
                yield from ((name, key) for key in _keys(Reader(file)))
        except Unreachable:
            raise
        except OSError:
            continue


def _keys(reader: Reader) -> Iterator[str]:
    members = Members(reader, is_own=False, keeps_contents=False)
    for found in Walk(members, np.zeros(0, np.int64), is_own=False):
        if isinstance(found, Plain):
            yield from (key.decode("utf-8", "surrogateescape") for key in found.keys)
        else:
            yield found.key
