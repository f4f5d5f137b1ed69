"""Finds how many samples a tar should hold from the files that img2dataset writes next to it.

A tar that was cut does not show how much is missing; `00012_stats.json` or the statuses in `00012.parquet`
do.
"""

from __future__ import annotations

import json
from typing import Any

from tasks.core.stores import Store, StoreUnreachable

LARGEST_STATS = 1 << 20
LARGEST_TABLE = 256 << 20
"""The most bytes that are read of such a file."""


def stated_samples(store: Store, tar: str, query: str = "") -> tuple[int, str] | None:
    """Return the number of samples that were written into a tar of the store, and the file that states it.

    None if no file does. `query` is appended to each address on a web server. StoreUnreachable if the store
    does not answer.
    """
    stem = tar.partition(".tar")[0].removesuffix(".tgz")
    for name, read in ((f"{stem}_stats.json", _successes), (f"{stem}.parquet", _statuses)):
        try:
            count = read(store, name + query)
        except StoreUnreachable:
            raise
        except Exception:  # noqa: BLE001 - a torn file or one of another format states nothing
            continue
        if count is not None:
            return count, name
    return None


def _successes(store: Store, name: str) -> int | None:
    value: Any = json.loads(store.read(name, LARGEST_STATS))["successes"]
    return value if type(value) is int and value >= 0 else None


def _statuses(store: Store, name: str) -> int | None:
    content = store.read(name, LARGEST_TABLE)
    if len(content) > LARGEST_TABLE:
        return None
    import pyarrow as pa  # here, because few tars are cut
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(content), columns=["status"], use_threads=False)
    statuses: list[str | None] = table["status"].to_pylist()
    return statuses.count("success")
