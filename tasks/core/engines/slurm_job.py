"""A map written down for Slurm jobs, and what such a job does with its share of it.

The plan (which function, which items, how many shares) is JSON, typed by the function's annotations on both
sides: a job needs nothing of its starter's memory, and nobody loads a pickle of values. A job does its share
in a process pool and appends each result as a line to a file of its own. It ends when the share is done, when
its time limit is near (work in hand is finished first), and when its starter has been silent for too long.
Whatever else ends it costs the items in hand, no more.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import logging
import math
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from tasks.core.engines.local import map_here
from tasks.core.errors import TarmacError, kind_of
from tasks.core.files import append_line, read_json, write_json

_RESULT = re.compile(rb'\{"item": (\d+), "result": .*\}\n')
"""A whole line with a result, as `json.dumps` writes it; a torn line does not match."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """A function by its name, with the keyword arguments that every item shares."""

    target: str
    given: dict[str, Any]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Call:
        """TypeError for what another process cannot import: lambdas, closures, functions of a script."""
        given: dict[str, Any] = {}
        while isinstance(function, functools.partial):
            if function.args:
                raise TypeError(f"{function} gives positional arguments; give keywords")
            given = {**function.keywords, **given}
            function = function.func
        target = f"{function.__module__}:{function.__qualname__}"
        if function.__module__ == "__main__" or not function.__qualname__.isidentifier():
            raise TypeError(f"{target} cannot be found by its name")
        return cls(
            target,
            {name: _type(target, name).dump_python(value, mode="json") for name, value in given.items()},
        )

    @property
    def function(self) -> Callable[[Any], Any]:
        """The function with its shared arguments, coerced to their annotations."""
        given = {name: _type(self.target, name).validate_python(value) for name, value in self.given.items()}
        return functools.partial(_find(self.target), **given)

    @property
    def module(self) -> str:
        return self.target.partition(":")[0]

    @property
    def item(self) -> TypeAdapter[Any]:
        return _type(self.target, next(iter(inspect.signature(_find(self.target)).parameters)))

    @property
    def result(self) -> TypeAdapter[Any]:
        return _type(self.target, "return")


@functools.cache
def _find(target: str) -> Callable[..., Any]:
    module, _, name = target.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return found


@functools.cache
def _type(target: str, name: str) -> TypeAdapter[Any]:
    """The type of the function's argument `name`, or of its result (`return`)."""
    return TypeAdapter(get_type_hints(_find(target)).get(name, Any))


@dataclass(frozen=True)
class Plan:
    """A map's folder: `plan.json`, `items.jsonl`, and the rows of each job.

    Share `s` of `shares` has the items s, s + shares, s + 2 * shares and so on, so that a list sorted by size
    gives each job about the same work. A job works on for `silence_s` seconds without a sign of its starter.
    """

    folder: Path
    call: Call
    count: int
    shares: int
    workers: int
    silence_s: float

    @classmethod
    def write(
        cls, folder: Path, call: Call, items: Iterable[Any], jobs: int, workers: int, silence_s: float
    ) -> Plan:
        """Write the items, one at a time, and then the plan."""
        folder.mkdir(parents=True)
        count = 0
        with (folder / "items.jsonl").open("wb") as file:
            for item in items:
                file.write(call.item.dump_json(item) + b"\n")
                count += 1
        plan = cls(folder, call, count, min(jobs, count), workers, silence_s)
        fields = {name: value for name, value in vars(plan).items() if name not in ("folder", "call")}
        write_json(folder / "plan.json", {**fields, "target": call.target, "given": call.given})
        return plan

    @classmethod
    def read(cls, folder: Path) -> Plan:
        value = read_json(folder / "plan.json")
        return cls(folder, Call(value.pop("target"), value.pop("given")), **value)

    def items_of(self, share: int) -> Iterator[tuple[int, Any]]:
        """The share's items as JSON values, each with its number."""
        with (self.folder / "items.jsonl").open("rb") as lines:
            for number, line in islice(enumerate(lines), share, None, self.shares):
                yield number, json.loads(line)

    def size_of(self, share: int) -> int:
        return len(range(share, self.count, self.shares))

    def rows_of(self, share: int, attempt: int) -> Path:
        """The file to which one attempt at one share appends the items that it begins and finishes."""
        return self.folder / "rows" / f"{share}.{attempt}.jsonl"

    @property
    def heartbeat(self) -> Path:
        """A file that the starter rewrites every few seconds, and removes at the end."""
        return self.folder / "heartbeat"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def log_of(self, job: str) -> Path:
        """The file that submitit sends a job's output to."""
        return self.logs / f"{job}_0_log.out"


def enter(folder: str, share: int, attempt: int) -> None:
    """The job's entry point, called by submitit."""
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
    except TarmacError as error:  # from the pool itself: no worker survives this work
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
        return {"item": number, "error": kind_of(error), "text": str(error)}
    except Exception as error:
        logger.exception("item %d", number)
        return {"item": number, "error": "", "text": f"{type(error).__name__}: {error}"}


def _done(plan: Plan, share: int) -> bytearray:
    """One byte per item of the share: whether any attempt at it left a result."""
    done = bytearray(plan.size_of(share))
    for path in plan.folder.glob(f"rows/{share}.*.jsonl"):
        with path.open("rb") as lines:
            for item in filter(None, map(_RESULT.match, lines)):
                done[int(item.group(1)) // plan.shares] = True
    return done


def _heed_signals(preload: str) -> threading.Event:
    """Take over the signals from submitit, which would requeue or ignore them; the event is set when the time
    limit is near.

    Slurm sends SIGUSR2 to every process of the job: those started while it is ignored (the pool's) go on
    ignoring it. SIGTERM is scancel or preemption; there is nothing to save, so it ends the job at once.
    """
    time_is_up = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    multiprocessing.set_forkserver_preload([preload])
    forkserver.ensure_running()
    signal.signal(signal.SIGUSR2, lambda number, frame: time_is_up.set())
    return time_is_up


def _end_with_starter(plan: Plan, alive: Path) -> None:
    """End this process, and its pool with it, when the starter's heartbeat is missing or too old."""

    def watch() -> None:
        pause = threading.Event()
        while (silence := silence_s(plan.heartbeat, alive)) < plan.silence_s:
            pause.wait(plan.silence_s / 6)
        logger.error("the process that started this job is gone (silent for %.0f s)", silence)
        os._exit(1)

    threading.Thread(target=watch, name="end-with-starter", daemon=True).start()


def silence_s(heartbeat: Path, alive: Path) -> float:
    """Seconds since the starter last wrote `heartbeat`; infinite when the file or its file system is gone.

    The machines' clocks may differ, so both times are the file system's, which stamps `alive` now. Opening
    the files makes NFS fetch their attributes anew.
    """
    try:
        alive.write_text(".")
        with alive.open("rb") as mine, heartbeat.open("rb") as theirs:
            return os.fstat(mine.fileno()).st_mtime - os.fstat(theirs.fileno()).st_mtime
    except OSError as error:
        logger.error("%s", error)
        return math.inf
