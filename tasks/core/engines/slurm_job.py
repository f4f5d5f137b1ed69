"""Inside a Slurm job: one share of a map, done by a process pool, each result a line in the job's own file.

The job ends when its share is done, when its time limit is near (what is in hand is finished first), and
when its starter has been silent for too long. Whatever else ends it costs the items in hand, no more.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from tasks.core.child import ERRORS
from tasks.core.engines.local import map_here
from tasks.core.engines.plan import Call, Plan
from tasks.core.errors import TarmacError
from tasks.core.files import append_line

_RESULT = re.compile(rb'\{"item": (\d+), "result": .*\}\n')
"""A whole line with a result, as `json.dumps` writes it; a torn one is none."""

logger = logging.getLogger(__name__)


def enter(folder: str, share: int, attempt: int) -> None:
    """What submitit calls in the job."""
    plan = Plan.read(Path(folder))
    time_is_up = _heed_signals(plan.call.module)
    rows = plan.rows_of(share, attempt)
    rows.parent.mkdir(exist_ok=True)
    _end_with_starter(plan, rows.with_suffix(".alive"))

    def note(**row: Any) -> None:
        append_line(rows, json.dumps(row))

    def left() -> Iterator[tuple[int, Any]]:
        done = _done(plan, share)
        for number, value in plan.items_of(share):
            if time_is_up.is_set():
                return
            if not done[number // plan.shares]:
                note(begun=number)
                yield number, value

    note(began=os.environ.get("SLURM_JOB_ID"))
    try:
        for row in map_here(functools.partial(_do, plan.call), left(), plan.workers):
            note(**row)
            if "error" in row:
                return
    except TarmacError as error:  # the pool's own: no worker survives this work
        note(error=type(error).__name__, text=str(error))
        return
    note(end="time" if time_is_up.is_set() else "all")


def _do(call: Call, numbered: tuple[int, Any]) -> dict[str, Any]:
    """One item in a worker process, from JSON to JSON."""
    number, value = numbered
    try:
        result = call.function(call.item.validate_python(value))
        return {"item": number, "result": call.result.dump_python(result, mode="json")}
    except TarmacError as error:
        kind = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS)
        return {"item": number, "error": kind, "text": str(error)}
    except Exception as error:
        logger.exception("item %d", number)
        return {"item": number, "error": "", "text": f"{type(error).__name__}: {error}"}


def _done(plan: Plan, share: int) -> bytearray:
    """A byte an item of the share: whether any attempt at it left its result."""
    done = bytearray(plan.size_of(share))
    for path in plan.folder.glob(f"rows/{share}.*.jsonl"):
        with path.open("rb") as lines:
            for item in filter(None, map(_RESULT.match, lines)):
                done[int(item.group(1)) // plan.shares] = True
    return done


def _heed_signals(preload: str) -> threading.Event:
    """Take the signals from submitit, which would requeue or ignore them; the event says that time is short.

    Slurm sends SIGUSR2 to every process of the job: those that are started while it is ignored (the pool's)
    go on ignoring it. SIGTERM is scancel and preemption; nothing is to be saved, so it ends the job at once.
    """
    time_is_up = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    multiprocessing.set_forkserver_preload([preload])
    forkserver.ensure_running()
    signal.signal(signal.SIGUSR2, lambda number, frame: time_is_up.set())
    return time_is_up


def _end_with_starter(plan: Plan, alive: Path) -> None:
    """End this process, and with it its pool, when the starter's heartbeat is gone or too old."""

    def watch() -> None:
        pause = threading.Event()
        while (silence := silence_s(plan.heartbeat, alive)) < plan.silence_s:
            pause.wait(plan.silence_s / 6)
        logger.error("the process that started this job is gone (silent for %.0f s)", silence)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-starter", daemon=True).start()


def silence_s(heartbeat: Path, alive: Path) -> float:
    """Seconds since the starter last wrote `heartbeat`; infinite when it, or the file system, is gone.

    The machines' clocks may differ, so the time now is taken from the same one: that of the file system, as
    it stamps `alive`. Opening both makes NFS look afresh.
    """
    try:
        alive.write_text(".")
        with alive.open("rb") as mine, heartbeat.open("rb") as theirs:
            return os.fstat(mine.fileno()).st_mtime - os.fstat(theirs.fileno()).st_mtime
    except OSError as error:
        logger.error("%s", error)
        return math.inf
