"""Staged shards on their way to the disk: what a crash of the machine may tear, and what it cannot.

Killing a process loses nothing that it has written, so workers do not wait for the disk. The build flushes
their shards while they go on, notes which are there, and makes a version only of flushed ones. A build that
goes on after a crash trusts those alone.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tasks.core.files import append_line, write_atomic
from tasks.core.process import boot_id
from tasks.dataset.building.catalogue import Catalogue
from tasks.dataset.building.convert import SUFFIXES, sidecar_path, tar_path

NAME = "flushed"
"""Below the staging folder: the id of the machine's boot, then the digest of each leaf that is on disk."""


def trust(staging: Path) -> None:
    """Begin to note what is flushed. After a boot, shards that no note is of are removed."""
    notes = staging / NAME
    noted = notes.read_text(errors="replace").split() if notes.exists() else []
    if noted[:1] == [boot_id()]:
        return
    leaves = set(noted[1:])
    for path in staging.iterdir():
        if path.suffix in SUFFIXES and path.stem not in leaves:
            path.unlink()
    write_atomic(notes, "\n".join([boot_id(), *sorted(leaves), ""]))


def flushed(catalogue: Catalogue, staging: Path, converted: Iterator[int]) -> Generator[int, None, None]:
    """Pass on the leaves that are converted and flush their shards behind them; once there are no more, all
    are on disk. OSError."""
    thread = ThreadPoolExecutor(1)
    pending: deque[Future[None]] = deque()
    try:
        for ordinal in converted:
            pending.append(thread.submit(_flush, staging, catalogue.leaf(ordinal).digest))
            while pending and pending[0].done():
                pending.popleft().result()
            yield ordinal
        for one in pending:
            one.result()
    finally:
        thread.shutdown(cancel_futures=True)


def _flush(staging: Path, leaf: str) -> None:
    tar = tar_path(staging, leaf)
    sidecar = sidecar_path(staging, leaf)
    for path in (tar, sidecar) if tar.exists() else (sidecar,):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    append_line(staging / NAME, leaf)
