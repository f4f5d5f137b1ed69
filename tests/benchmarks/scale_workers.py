"""Maps on one and more workers of this machine's processes, of a Slurm array and of Dask, timed where the items run.

Slurm is a real one of this machine, Dask a scheduler and workers that are processes here. So several workers share the
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
from typing import Any

from tasks.core.engines import map_groups
from tasks.core.schema.engine import Engines
from tests import slurm_lab

HASHES = 400_000
"""Rounds of SHA-256 of an item that computes: about a tenth of a second of a core."""


def compute(hashes: int) -> tuple[float, float]:
    """Keep a core busy, or do nothing for 0 hashes, which leaves what the engine costs; when it began and ended."""
    began = time.time()
    if hashes:
        hashlib.pbkdf2_hmac("sha256", b"tarmac", b"scale", hashes)
    return began, time.time()


def taken(place: Path, busy: int, empty: int, engines: Engines) -> dict[str, float]:
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


def local(workers: int) -> Engines:
    return _engines(kind="local", workers=workers)


def slurm(jobs: int) -> Engines:
    """An array of so many jobs of one core each."""
    return _engines(kind="slurm", jobs=jobs, cpus=1)


@contextmanager
def slurm_here(folder: Path) -> Iterator[None]:
    """A Slurm that this process's maps go to."""
    folder.mkdir()
    before = os.environ.get("SLURM_CONF")
    with slurm_lab.slurm_lab(folder) as conf:
        os.environ["SLURM_CONF"] = str(conf)
        yield
    del os.environ["SLURM_CONF"]
    if before is not None:
        os.environ["SLURM_CONF"] = before


def dask_here(folder: Path, workers: int, stack: ExitStack) -> Engines:
    """A Dask cluster that lives until the stack is closed."""
    from tests.system.test_dask_build import Cluster

    cluster = Cluster(folder, stack)
    for number in range(workers):
        cluster.worker(f"w{number}")
    return _engines(kind="dask", address=cluster.address)


def _engines(**build: Any) -> Engines:
    return Engines.model_validate({"build": build})
