"""The same work on one, two and four workers of this machine's processes, of a Slurm array and of Dask.

Slurm is a real one of this machine, Dask a scheduler and workers that are processes here. So four workers share the
cores that there are, and no network lies between them: what is measured is what the engines themselves cost.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tasks.core.engines import map_groups
from tasks.core.schema.engine import Engines
from tests import slurm_lab

WORKERS = (1, 2, 4)
HASHES = 400_000
"""Rounds of SHA-256 of an item that computes: about a tenth of a second of a core."""
Row = dict[str, float]


def compute(hashes: int) -> tuple[float, float]:
    """Keep a core busy, or do nothing for 0 hashes, which leaves what the engine costs; when it began and ended."""
    began = time.time()
    if hashes:
        hashlib.pbkdf2_hmac("sha256", b"tarmac", b"scale", hashes)
    return began, time.time()


def measure(place: Path, rounds: int, busy: int, empty: int) -> dict[str, dict[str, Row]]:
    """By engine and number of workers: see `taken`; engines that this machine lacks are left out, and said."""
    found: dict[str, dict[str, Row]] = {}
    for kind, cluster in {"local": here, "slurm": slurm, "dask": dask}.items():
        if kind == "slurm" and (lacks := slurm_lab.missing()):
            print(f"slurm: left out, for {', '.join(lacks)} is not installed")
            continue
        for workers in WORKERS:
            with cluster(place, workers) as engines:
                rows = [taken(engines, place, busy, empty) for _ in range(rounds)]
            middle = {key: median(row[key] for row in rows) for key in rows[0]}
            found.setdefault(kind, {})[str(workers)] = middle
            print(f"{kind:6} {workers} workers: {middle}", flush=True)
    for rows in found.values():
        for row in rows.values():
            row["speed_up"] = rows["1"]["busy_s"] / row["busy_s"]
            row["whole_speed_up"] = rows["1"]["whole_s"] / row["whole_s"]
    return found


def taken(engines: Engines, place: Path, busy: int, empty: int) -> Row:
    """Seconds of a map of items that compute: whole, until the first item begins, and from then until the last has
    ended; and the milliseconds from one item to the next where they do nothing, over all workers. All is timed where
    the items run, because Slurm's results are looked at twice a second only."""
    began = time.time()
    times = timed(engines, place, [HASHES] * busy)
    whole, first = time.time() - began, min(start for start, _ in times)
    starts = [start for start, _ in timed(engines, place, [0] * empty)]
    return {
        "whole_s": whole,
        "first_s": first - began,
        "busy_s": max(end for _, end in times) - first,
        "item_ms": (max(starts) - min(starts)) / (empty - 1) * 1000,
    }


def timed(engines: Engines, place: Path, items: list[int]) -> list[tuple[float, float]]:
    """When each item began and ended."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        times = [*map_groups(compute, items, engines, folder=Path(folder) / "jobs")]
    assert len(times) == len(items)
    return times


@contextmanager
def here(place: Path, workers: int) -> Iterator[Engines]:
    yield _engines(kind="local", workers=workers)


@contextmanager
def slurm(place: Path, workers: int) -> Iterator[Engines]:
    """An array of so many jobs of one core each, watched as often as on any cluster."""
    folder = place / f"slurm-{workers}"
    folder.mkdir()
    with slurm_lab.slurm_lab(folder) as conf:
        os.environ["SLURM_CONF"] = str(conf)
        yield _engines(kind="slurm", jobs=workers, cpus=1)


@contextmanager
def dask(place: Path, workers: int) -> Iterator[Engines]:
    from tests.system.test_dask_build import Cluster

    folder = place / f"dask-{workers}"
    folder.mkdir()
    with ExitStack() as stack:
        cluster = Cluster(folder, stack)
        for number in range(workers):
            cluster.worker(f"w{number}")
        yield _engines(kind="dask", address=cluster.address)


def _engines(**build: Any) -> Engines:
    return Engines.model_validate({"build": build})
