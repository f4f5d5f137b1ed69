"""Groups, such as patients, that are in more than one split: what is held out leaks into the training.

In constant memory, as with keys: hashes meet in a spool, and only those that met are looked up again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.dataset.verify.duplicates import key_hash
from tasks.dataset.verify.ledger import Ledger
from tasks.dataset.verify.parquet import Torn
from tasks.dataset.verify.samples_table import Rows
from tasks.dataset.verify.spool import Spool

NAMED = 3
"""Groups that the finding of a split names; the others are counted."""


def check_groups(splits: Mapping[str, Rows], ledger: Ledger) -> None:
    """Tell of each split which of its groups an earlier split has."""
    names = [split for split, rows in splits.items() if rows.table.is_grouped]
    if len(names) < 2:
        return
    with Spool() as spool:
        for number, split in enumerate(names):
            for values in _groups(splits[split], ledger):
                hashes = np.array([key_hash(group) for group in values], np.uint64)
                spool.add(np.unique(hashes), number, np.zeros(len(hashes), np.uint32))
        shared: dict[tuple[int, int], set[int]] = {}
        counts: dict[tuple[int, int], int] = {}
        for piece in spool.repeated():
            for value, pair in _pairs(piece):
                counts[pair] = counts.get(pair, 0) + 1
                if counts[pair] <= NAMED:
                    shared.setdefault(pair, set()).add(value)
    for (first, later), wanted in shared.items():
        rows = splits[names[later]]
        for group in _named(rows, wanted, ledger):
            ledger.add(rows.name, f"group {group!r} is in {names[first]} and in {names[later]}")
        ledger.note(rows.name, shared_groups=counts[first, later])


def _groups(rows: Rows, ledger: Ledger) -> Iterator[list[str]]:
    """The groups of a split, those of a row group at a time, each once."""
    try:
        for table in rows.table.batches("group"):
            yield table.column("group").cast(pa.string()).unique().drop_null().to_pylist()
    except Torn as torn:
        ledger.add(rows.name, str(torn))
    except pa.ArrowException:
        ledger.add(rows.name, "no sound column group")


def _pairs(met: NDArray[np.void]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Each value that is in two splits, with the first of them and each later one."""
    _, starts = np.unique(met["value"], return_index=True)
    for start, stop in pairwise([*starts, len(met)]):
        first, *others = np.unique(met["place"][start:stop]).tolist()
        for later in others:
            yield int(met["value"][start]), (first, later)


def _named(rows: Rows, values: set[int], ledger: Ledger) -> list[str]:
    found = {group for groups in _groups(rows, ledger) for group in groups if key_hash(group) in values}
    return sorted(found)
