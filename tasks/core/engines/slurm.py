"""A map as an array of Slurm jobs, watched by the process that started it.

What is done is known from the rows that the jobs append to their files, and what lives from squeue;
submitit's own states mean nothing without Slurm's accounting. The starter only submits, reads and writes a
heartbeat: the work, and the memory it takes, is the jobs'. When the starter ends, or the process that it ends
with, it cancels the jobs; when it is killed they notice. `MapShare` and `MapTally` decide what becomes of a
share from values alone, without any I/O.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from tasks.core.engines.local import TRIES
from tasks.core.engines.slurm_job import MapPlan, unpacked
from tasks.core.engines.slurm_queue import SETTLE_S, Queue, ending, require_slurm
from tasks.core.errors import KINDS, TarmacError
from tasks.core.files import read_lines
from tasks.core.process import before_killed
from tasks.core.schema.engine import BuildEngine
from tasks.core.units import counted

Item = TypeVar("Item")
Result = TypeVar("Result")
JOBS = 4
BEAT_S = 5.0
SILENCE_S = 60.0
"""A job ends itself after this long without a sign of its starter."""
POLL_S = 0.5
QUEUE_POLL_S = 10.0
UNKNOWN_S = 600.0
"""How long squeue may go unanswered while no result arrives."""
GRACE_S = 10.0
"""How long the last rows of a job may take to appear after the job has left the queue."""
LOG_LINES = 5
State = Literal["waiting", "running", "spent", "lost"]

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
    plan = MapPlan.write(folder / token, function, items, engine.jobs or JOBS, workers, SILENCE_S)
    if plan.count == 0:
        return
    queue = Queue(f"tarmac-build-{token}")
    settle_s = 0.0
    with _heartbeat(plan.heartbeat), before_killed(queue.give_up):
        try:
            yield from _MapWatch(plan, queue, engine, say).results()
            settle_s = SETTLE_S
        finally:
            queue.cancel(after_s=settle_s)


@contextlib.contextmanager
def _heartbeat(path: Path) -> Iterator[None]:
    """Rewrite `path` every few seconds from a thread, since the consumer of the results may be slow."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            try:
                path.write_text(".")
            except OSError as error:  # the next one may succeed; the jobs tolerate a few missing ones
                logger.warning("%s: %s", path, error)

    path.write_text(".")
    thread = threading.Thread(target=beat, name="slurm-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        path.unlink(missing_ok=True)


def _waiting(reasons: list[str]) -> str:
    """How many jobs wait, and the reason of most of them in Slurm's words."""
    [(reason, _)] = Counter(reasons).most_common(1)
    why = f" ({reason})" if reason != "None" else ""
    return f"waiting in the queue: {counted(len(reasons), 'job')}{why}"


@dataclass
class MapShare:
    """One share and the current attempt at it."""

    number: int
    left: int
    """Items without a result."""
    attempt: int = 0
    job: str = ""
    begun: set[int] = field(default_factory=set)
    """Items that this attempt has begun and not finished."""
    ended: str | None = None
    results: int = 0
    """Results of this attempt."""
    fruitless: int = 0
    """Attempts in a row that ended without a result."""
    gone_since: float | None = None

    def begin(self, job: str) -> None:
        self.job = job
        self.begun, self.ended, self.results, self.gone_since = set(), None, 0, None

    def take_row(self, row: dict[str, Any]) -> None:
        """Take a row of this attempt's job; the tally counts the results."""
        if "begun" in row:
            self.begun.add(row["begun"])
        elif "item" in row:
            self.begun.discard(row["item"])
            self.results += 1
        elif "end" in row:
            self.ended = row["end"]

    def state(self, queued: str | None, now: float) -> State:
        """`queued` is the job's state in the queue, None when the queue does not have the job.

        A job that stopped for its time limit is spent; one that vanished with work left is lost.
        """
        if self.ended == "time":
            return "spent"
        if queued is not None:
            self.gone_since = None
            return "waiting" if queued == "PENDING" else "running"
        if self.gone_since is None:
            self.gone_since = now
        return "lost" if now - self.gone_since >= GRACE_S else "running"


class MapTally:
    """Which items are done, and how often an item or a share was lost."""

    def __init__(self, count: int) -> None:
        self.left = count
        self._done = bytearray(count)
        self._losses: dict[int, int] = {}

    def add_result(self, item: int) -> bool:
        """Count a result; False where the item was done twice and its result is counted already."""
        if self._done[item]:
            return False
        self._done[item] = True
        self._losses.pop(item, None)
        self.left -= 1
        return True

    def add_end(self, share: MapShare) -> bool:
        """Count the early end of a share's attempt; True when it is to be given up, after TRIES attempts over
        the same item, or one after the other without any result."""
        share.fruitless = 0 if share.results else share.fruitless + 1
        in_hand = [item for item in share.begun if not self._done[item]]
        for item in in_hand:
            self._losses[item] = self._losses.get(item, 0) + 1
        return share.fruitless >= TRIES or any(self._losses[item] >= TRIES for item in in_hand)


class _MapWatch:
    """The starter's side of a map while it runs."""

    def __init__(self, plan: MapPlan, queue: Queue, engine: BuildEngine, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._queue = queue
        self._engine = engine
        self._say = say
        self._tally = MapTally(plan.count)
        self._shares = [MapShare(number, plan.size_of(number)) for number in range(plan.shares)]
        self._offsets: dict[Path, int] = {}
        self._answered = self._progressed = self._looked = time.monotonic()

    def results(self) -> Iterator[Any]:
        """The results; submits all shares, and again what is lost."""
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
        jobs = self._queue.submit(self._plan, self._engine, [(s.number, s.attempt) for s in shares])
        for share, job in zip(shares, jobs, strict=True):
            share.begin(job)
        self._answered = self._looked = time.monotonic()

    def _news(self, share: MapShare) -> Iterator[Any]:
        """New results of a share, also of earlier attempts, whose rows may appear late."""
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
        log = self._plan.log_of(share.job)
        return TarmacError(f"a Slurm job failed: {row['text']}; its log is {log}")

    def _look(self) -> None:
        """Compare the open shares with the queue."""
        now = time.monotonic()
        seen = self._queue.look()
        if seen is None:
            if now - max(self._answered, self._progressed) > UNKNOWN_S:
                raise TarmacError(
                    f"Slurm has not answered squeue for {UNKNOWN_S / 60:.0f} minutes and no result came; "
                    "start again when it does, what is done is kept"
                )
            return
        self._answered = now
        waiting: list[str] = []
        shares = self._unfinished()
        for share in shares:
            queued, reason = seen.get(share.job, (None, ""))
            state = share.state(queued, now)
            if state == "waiting":
                waiting.append(reason)
            elif state in ("spent", "lost"):
                self._again(share, is_lost=state == "lost")
        if waiting and len(waiting) == len(shares):
            self._say(_waiting(waiting))

    def _again(self, share: MapShare, is_lost: bool) -> None:
        """Submit what an ended job has left over; TarmacError when that has been tried often enough."""
        how = (ending(share.job) if is_lost else "") or ("TIMEOUT" if share.ended == "time" else "vanished")
        if self._tally.add_end(share):
            raise TarmacError(self._hopeless(share, how))
        logger.warning(
            "Slurm job %s ended early (%s); its %d items go to another", share.job, how, share.left
        )
        share.attempt += 1
        self._submit([share])

    def _hopeless(self, share: MapShare, how: str) -> str:
        remedy = {
            "TIMEOUT": "; give engine.build.time a longer time",
            "OUT_OF_MEMORY": "; give engine.build.memory more, or fewer workers",
        }.get(how, "")
        log = self._plan.log_of(share.job)
        if not log.exists():
            return (
                f"{TRIES} Slurm jobs ended ({how}{remedy}) and left no log {log}; "
                "do the nodes see this folder? It has to lie on a file system that they share"
            )
        with log.open(encoding="utf-8", errors="replace") as lines:
            tail = list(lines)[-LOG_LINES:]
        return "\n  ".join(
            [f"Slurm jobs ended {TRIES} times over the same work ({how}{remedy}); the last log, {log}, ends:"]
            + [line.rstrip() for line in tail]
        )
