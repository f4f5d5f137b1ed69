"""How many samples a tar should hold by the files that img2dataset puts beside it.

A tar that was cut does not show how much is gone; `00012_stats.json` or the statuses in `00012.parquet` do.
"""

from __future__ import annotations

import json
from typing import Any

from tasks.core.stores import Store, StoreUnreachable

LARGEST_STATS = 1 << 20
LARGEST_TABLE = 256 << 20
"""Bytes of a file that is read."""


def stated_samples(store: Store, tar: str, query: str = "") -> tuple[int, str] | None:
    """The number of samples that were written into a tar of the store, and the file that says so.

    None where no file does. `query` belongs to each address on a web server. Unreachable.
    """
    stem = tar.partition(".tar")[0].removesuffix(".tgz")
    for name, read in ((f"{stem}_stats.json", _successes), (f"{stem}.parquet", _statuses)):
        try:
            count = read(store, name + query)
        except StoreUnreachable:
            raise
        except Exception:  # noqa: BLE001 - a file of another form, or a torn one, states nothing
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
