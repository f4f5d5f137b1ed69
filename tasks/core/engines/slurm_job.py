"""The plan of a map for Slurm jobs, and the code that a job runs for its share.

submitit pickles the plan for each job; the items are in a file beside it, one per line, so that no process
holds them all. A job processes its share in a process pool and appends each result as a line to its own file.
It ends when the share is done, when its time limit is near (running work is finished first), and when its
starter is gone. If anything else ends it, only the running items are lost.
"""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.core.engines.local import map_here
from tasks.core.engines.slurm_queue import SlurmJob
from tasks.core.errors import TarmacError, kind_of
from tasks.core.files import append_line
from tasks.core.lock import holder_of

STARTER_S = 5.0
"""The pause between two looks of a job at the lease of its starter."""
_RESULT = re.compile(rb'\{"item": (\d+), "result": "[^"]*"\}\n')
"""Matches a complete line with a result, as `json.dumps` writes it; a torn line does not match."""

logger = logging.getLogger(__name__)


def packed(value: Any) -> str:
    """Return a value as text on one line."""
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(text: str | bytes) -> Any:
    return pickle.loads(base64.b64decode(text))


@dataclass(frozen=True)
class MapPlan:
    """A map and its folder, which holds the items and the rows of each job.

    Share `s` of `shares` has the items s, s + shares, s + 2 * shares and so on, so that a list sorted by size
    gives each job about the same work.
    """

    folder: Path
    function: Callable[[Any], Any]
    count: int
    shares: int
    workers: int

    @classmethod
    def write(
        cls,
        folder: Path,
        function: Callable[[Any], Any],
        items: Iterable[Any],
        jobs: int,
        workers: int,
    ) -> MapPlan:
        """Write the items to the folder, one at a time, and return the plan."""
        folder.mkdir(parents=True)
        count = 0
        with (folder / "items").open("w") as file:
            for item in items:
                file.write(packed(item) + "\n")
                count += 1
        return cls(folder, function, count, min(jobs, count), workers)

    def items_of(self, share: int) -> Iterator[tuple[int, Any]]:
        """Yield the share's items, each with its number."""
        with (self.folder / "items").open() as lines:
            for number, line in islice(enumerate(lines), share, None, self.shares):
                yield number, unpacked(line)

    def size_of(self, share: int) -> int:
        return len(range(share, self.count, self.shares))

    def rows_of(self, share: int, attempt: int) -> Path:
        """Return the file to which one attempt at a share appends the items that it begins and finishes."""
        return self.folder / "rows" / f"{share}.{attempt}.jsonl"

    @property
    def lease(self) -> Path:
        """The lease that the starter holds as long as it lives."""
        return self.folder / "starter.lease"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def log_of(self, job: SlurmJob) -> Path:
        """Return the file to which submitit writes a job's output."""
        return self.logs / f"{job.id}_0_log.out"


def enter(plan: MapPlan, share: int, attempt: int) -> None:
    """The job's entry point, called by submitit."""
    time_is_up = _heed_signals()
    rows = plan.rows_of(share, attempt)
    rows.parent.mkdir(exist_ok=True)
    _end_with_starter(plan.lease)

    def note(**row: Any) -> None:
        append_line(rows, json.dumps(row))

    def left() -> Iterator[tuple[int, Any]]:
        done = _done(plan, share)
        for number, item in plan.items_of(share):
            if time_is_up.is_set():
                return
            if not done[number // plan.shares]:
                note(begun=number)
                yield number, item

    note(began=os.environ.get("SLURM_JOB_ID"))
    try:
        for row in map_here(functools.partial(_do, plan.function), left(), plan.workers):
            note(**row)
            if "error" in row:
                return
    except TarmacError as error:  # from the pool itself: no worker survives this work
        note(error=type(error).__name__, text=str(error))
        return
    note(end="time" if time_is_up.is_set() else "all")


def _do(function: Callable[[Any], Any], numbered: tuple[int, Any]) -> dict[str, Any]:
    """Process one item in a worker process and return its row."""
    number, item = numbered
    try:
        return {"item": number, "result": packed(function(item))}
    except TarmacError as error:
        return {"item": number, "error": kind_of(error), "text": str(error)}
    except Exception as error:
        logger.exception("item %d", number)
        return {"item": number, "error": "", "text": f"{type(error).__name__}: {error}"}


def _done(plan: MapPlan, share: int) -> bytearray:
    """Return one byte per item of the share: whether any attempt left a result."""
    done = bytearray(plan.size_of(share))
    for path in plan.folder.glob(f"rows/{share}.*.jsonl"):
        with path.open("rb") as lines:
            for item in filter(None, map(_RESULT.match, lines)):
                done[int(item.group(1)) // plan.shares] = True
    return done


def _heed_signals() -> threading.Event:
    """Take over the signals from submitit, which would requeue or ignore them; the event is set when the time
    limit is near. SIGTERM means scancel or preemption; there is nothing to save, so it ends the job at
    once."""
    time_is_up = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, lambda number, frame: time_is_up.set())
    return time_is_up


def _end_with_starter(lease: Path) -> None:
    """End this process and its pool when its starter does not hold its lease at two looks in a row."""

    def watch() -> None:
        pause, gone = threading.Event(), 0
        while gone < 2:
            pause.wait(STARTER_S)
            holder = holder_of(lease)
            gone = 0 if holder is not None and holder.is_alive() else gone + 1
        logger.error("the process that started this job is gone")
        os._exit(1)

    threading.Thread(target=watch, name="end-with-starter", daemon=True).start()
