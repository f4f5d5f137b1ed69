"""A map as an array of Slurm jobs, watched by the process that started it.

Each job appends its results as rows to its own file; a share that its job did not finish is submitted again
without what is done. The starter only submits, reads rows and looks at the queue; the jobs do the work and
use the memory. When the starter ends, or the process that it is tied to, it cancels the jobs; if it is
killed, the jobs find its lease left. `MapShare` and `MapTally` decide from values alone, without I/O, how to
continue with a share.
"""

from __future__ import annotations

import functools
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tasks.core.engines.local import TRIES
from tasks.core.engines.slurm_job import MapPlan, enter, unpacked
from tasks.core.engines.slurm_queue import (
    LAST_WORD_S,
    SETTLE_S,
    UNKNOWN_S,
    Queue,
    SlurmJob,
    require_slurm,
    silence,
    silence_s,
)
from tasks.core.errors import KINDS, TarmacError
from tasks.core.files import read_lines
from tasks.core.lock import Lease
from tasks.core.process import before_killed
from tasks.core.schema.engine import BuildEngine
from tasks.core.units import counted, duration

Item = TypeVar("Item")
Result = TypeVar("Result")
JOBS = 4
POLL_S = 0.5
QUEUE_POLL_S = 10.0
LOG_LINES = 5

logger = logging.getLogger(__name__)


def map_on_slurm(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    engine: BuildEngine,
    folder: Path,
    say: Callable[[str], None],
) -> Generator[Result, None, None]:
    """Yield `function(item)` for every item, in order of arrival; see `tasks.core.engines.map_groups`."""
    require_slurm()
    token = secrets.token_hex(4)
    workers = engine.workers or engine.cpus or 1
    plan = MapPlan.write(folder / token, function, items, engine.jobs or JOBS, workers)
    if plan.count == 0:
        return
    queue = Queue(f"tarmac-build-{token}")
    engine = engine.model_copy(update={"cpus": engine.cpus or workers})
    settle_s = 0.0
    with Lease(plan.lease), before_killed(lambda: queue.give_up(LAST_WORD_S)):
        try:
            yield from _MapWatch(plan, queue, engine, say).results()
            settle_s = SETTLE_S
        finally:
            queue.cancel(after_s=settle_s)


@dataclass
class MapShare:
    """One share and the current attempt at it."""

    number: int
    left: int
    """Items without a result."""
    attempt: int = 0
    job: SlurmJob | None = None
    begun: set[int] = field(default_factory=set)
    """Items that this attempt has begun but not finished."""
    ended: str | None = None
    results: int = 0
    """Results of this attempt."""
    fruitless: int = 0
    """Attempts in a row that ended without a result."""

    def begin(self, job: SlurmJob) -> None:
        self.job = job
        self.begun, self.ended, self.results = set(), None, 0

    def take_row(self, row: dict[str, Any]) -> None:
        """Take a row of this attempt's job; the tally counts the results."""
        if "begun" in row:
            self.begun.add(row["begun"])
        elif "item" in row:
            self.begun.discard(row["item"])
            self.results += 1
        elif "end" in row:
            self.ended = row["end"]


class MapTally:
    """Records which items are done, and how often each was lost."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._done = bytearray(count)
        self._losses: dict[int, int] = {}

    def add_result(self, item: int) -> bool:
        """Count a result; return False if the item was done twice and is counted already."""
        if self._done[item]:
            return False
        self._done[item] = True
        self._losses.pop(item, None)
        self.left -= 1
        return True

    def add_end(self, share: MapShare) -> bool:
        """Count the early end of a share's attempt. Return True if the share should fail: after TRIES lost
        attempts at the same item, or TRIES attempts in a row without any result."""
        share.fruitless = 0 if share.results else share.fruitless + 1
        in_hand = [item for item in share.begun if not self._done[item]]
        for item in in_hand:
            self._losses[item] = self._losses.get(item, 0) + 1
        return share.fruitless >= TRIES or any(self._losses[item] >= TRIES for item in in_hand)


class _MapWatch:
    """The starter's side of a running map."""

    def __init__(self, plan: MapPlan, queue: Queue, engine: BuildEngine, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._queue = queue
        self._engine = engine
        self._say = say
        self._tally = MapTally(plan.count)
        self._shares = [MapShare(number, plan.size_of(number)) for number in range(plan.shares)]
        self._offsets: dict[Path, int] = {}
        self._progressed = self._looked = time.monotonic()

    def results(self) -> Iterator[Any]:
        """Submit all shares, resubmit lost work, and yield the results."""
        self._submit(self._shares)
        while self._tally.left:
            has_news = False
            for share in self._unfinished():
                for value in self._news(share):
                    has_news = True
                    yield value
            if time.monotonic() - self._looked >= QUEUE_POLL_S:
                self._look()
                self._looked = time.monotonic()
            if not has_news:
                time.sleep(POLL_S)  # no event reports the growth of a file on another machine

    def _unfinished(self) -> list[MapShare]:
        return [share for share in self._shares if share.left]

    def _submit(self, shares: list[MapShare]) -> None:
        calls = [functools.partial(enter, self._plan, share.number, share.attempt) for share in shares]
        jobs = self._queue.submit(calls, self._plan.logs, self._engine, "engine.build")
        for share, job in zip(shares, jobs, strict=True):
            share.begin(job)
        self._looked = time.monotonic()

    def _news(self, share: MapShare) -> Iterator[Any]:
        """Yield new results of a share, including those of earlier attempts, whose rows may appear late."""
        for attempt in range(share.attempt + 1):
            path = self._plan.rows_of(share.number, attempt)
            rows, self._offsets[path] = read_lines(path, self._offsets.get(path, 0))
            for row in rows:
                if "error" in row:
                    raise self._error(row, share)
                if attempt == share.attempt:
                    share.take_row(row)
                if "result" in row and self._tally.add_result(row["item"]):
                    share.left -= 1
                    self._progressed = time.monotonic()
                    yield unpacked(row["result"])

    def _error(self, row: dict[str, Any], share: MapShare) -> TarmacError:
        if row["error"]:
            return KINDS[row["error"]](row["text"])
        assert share.job is not None
        log = self._plan.log_of(share.job)
        return TarmacError(f"a Slurm job failed: {row['text']}; its log is {log}")

    def _look(self) -> None:
        """Compare the unfinished shares with the queue."""
        if (silent_s := silence_s()) > 0:
            self._say(silence())
            if min(silent_s, time.monotonic() - self._progressed) > UNKNOWN_S:
                raise TarmacError(
                    f"Slurm has not answered squeue for {duration(UNKNOWN_S)} and no result came; "
                    "start again when it does; finished work is kept"
                )
            return
        reasons: list[str] = []
        shares = self._unfinished()
        for share in shares:
            assert share.job is not None
            if share.ended == "time":
                self._again(share, share.job, "TIMEOUT")
            elif not share.job.is_alive() and not share.job.was_just_alive():
                self._again(share, share.job, share.job.ending or "vanished")
            elif (why := share.job.waits_because) is not None:
                reasons.append(why)
        if reasons and len(reasons) == len(shares):
            self._say(_waiting(reasons))

    def _again(self, share: MapShare, job: SlurmJob, how: str) -> None:
        """Resubmit the unfinished items of an ended job; raises TarmacError after TRIES attempts."""
        if self._tally.add_end(share):
            raise TarmacError(self._hopeless(job, how))
        logger.warning(
            "%s ended early (%s); its %d remaining items go to another job",
            job,
            how,
            share.left,
        )
        share.attempt += 1
        self._submit([share])

    def _hopeless(self, job: SlurmJob, how: str) -> str:
        remedy = {
            "TIMEOUT": "; increase engine.build.time",
            "OUT_OF_MEMORY": "; increase engine.build.memory, or use fewer workers",
        }.get(how, "")
        log = self._plan.log_of(job)
        if not log.exists():
            return (
                f"{TRIES} Slurm jobs ended ({how}{remedy}) and left no log {log}; "
                "do the nodes see this folder? It must be on a file system that they share"
            )
        with log.open(encoding="utf-8", errors="replace") as lines:
            tail = list(lines)[-LOG_LINES:]
        return "\n  ".join(
            [f"Slurm jobs ended {TRIES} times over the same work ({how}{remedy}); the last log, {log}, ends:"]
            + [line.rstrip() for line in tail]
        )


def _waiting(reasons: list[str]) -> str:
    """Return a line with the number of waiting jobs and Slurm's most frequent reason."""
    [(reason, _)] = Counter(reasons).most_common(1)
    return f"waiting in the queue: {counted(len(reasons), 'job')}{f' ({reason})' if reason else ''}"
