"""A map as an array of Slurm jobs, watched from the process that started it.

Truth is fused from what the jobs append to their files and from what squeue has; submitit's own states say
nothing without Slurm's accounting. The starter only submits, reads and touches a heartbeat: the work, and
the memory it takes, is the jobs'. When the starter ends the jobs are cancelled; when it dies they notice.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from tasks.core.child import ERRORS
from tasks.core.engines.local import TRIES
from tasks.core.engines.plan import Call, Plan
from tasks.core.engines.shares import Share, Tally
from tasks.core.engines.slurm_queue import Queue, Queued, ending, log_of, require_slurm
from tasks.core.errors import TarmacError
from tasks.core.files import read_lines
from tasks.core.schema.engine import BuildEngine

Item = TypeVar("Item")
Result = TypeVar("Result")
JOBS = 4
BEAT_S = 5.0
SILENCE_S = 60.0
"""A job ends itself when its starter has been silent this long."""
POLL_S = 0.5
QUEUE_POLL_S = 10.0
UNKNOWN_S = 600.0
"""How long Slurm may leave squeue unanswered while no result arrives."""
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
    call = Call.of(function)
    plan = Plan.write(folder / token, call, items, engine.jobs or JOBS, workers, SILENCE_S)
    if plan.count == 0:
        return
    queue = Queue(f"tarmac-build-{token}")
    with _heartbeat(plan.heartbeat):
        try:
            for value in _Watch(plan, queue, engine, say).results():
                yield plan.call.result.validate_python(value)
            queue.settle()
        finally:
            queue.cancel()


@contextlib.contextmanager
def _heartbeat(path: Path) -> Iterator[None]:
    """Rewrite `path` every few seconds, from a thread: whoever takes the results may take his time."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_S):
            try:
                path.write_text(".")
            except OSError as error:  # the next one may succeed; the jobs bear a few that are missing
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
    """How many jobs wait, and what most of them wait for, in Slurm's words."""
    jobs = "1 job" if len(reasons) == 1 else f"{len(reasons)} jobs"
    [(reason, _)] = Counter(reasons).most_common(1)
    return f"waiting in the queue: {jobs}" + (f" ({reason})" if reason != "None" else "")


class _Watch:
    """The starter's side of a map while it runs."""

    def __init__(self, plan: Plan, queue: Queue, engine: BuildEngine, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._queue = queue
        self._engine = engine
        self._say = say
        self._tally = Tally(plan.count)
        self._shares = [Share(number, plan.size_of(number)) for number in range(plan.shares)]
        self._offsets: dict[Path, int] = {}
        self._answered = self._progressed = self._looked = time.monotonic()

    def results(self) -> Iterator[Any]:
        """The results' JSON values; submits, and submits again what was lost."""
        self._submit(self._shares)
        while self._tally.left:
            has_news = False
            for share in self._open():
                for value in self._news(share):
                    has_news = True
                    yield value
            if time.monotonic() - self._looked >= QUEUE_POLL_S:
                self._look()
                self._looked = time.monotonic()
            if not has_news:
                time.sleep(POLL_S)  # nothing tells of a file's growth on another machine

    def _open(self) -> list[Share]:
        return [share for share in self._shares if share.left]

    def _submit(self, shares: list[Share]) -> None:
        jobs = self._queue.submit(self._plan, self._engine, [(s.number, s.attempt) for s in shares])
        for share, job in zip(shares, jobs, strict=True):
            share.begin(job)
        self._answered = self._looked = time.monotonic()

    def _news(self, share: Share) -> Iterator[Any]:
        """New results of a share, of earlier attempts too: those may have been slow to appear."""
        for attempt in range(share.attempt + 1):
            path = self._plan.rows_of(share.number, attempt)
            rows, self._offsets[path] = read_lines(path, self._offsets.get(path, 0))
            for row in rows:
                if "error" in row:
                    raise self._error(row, share)
                if attempt == share.attempt:
                    share.hear(row)
                if "result" in row and self._tally.is_new(row["item"]):
                    share.left -= 1
                    self._progressed = time.monotonic()
                    yield row["result"]

    def _error(self, row: dict[str, Any], share: Share) -> TarmacError:
        if row["error"]:
            return ERRORS[row["error"]](row["text"])
        log = log_of(self._plan, share.job)
        return TarmacError(f"{self._plan.call.target} failed: {row['text']}; the job's log is {log}")

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
        waiting: list[Queued] = []
        shares = self._open()
        for share in shares:
            queued = seen.get(share.job)
            state = share.state(queued.state if queued else None, now)
            if state == "waiting" and queued is not None:
                waiting.append(queued)
            elif state in ("spent", "lost"):
                self._again(share, is_lost=state == "lost")
        if waiting and len(waiting) == len(shares):
            self._say(_waiting([queued.reason for queued in waiting]))

    def _again(self, share: Share, is_lost: bool) -> None:
        """Submit what an ended job has left; TarmacError when that has been tried often enough."""
        how = (ending(share.job) if is_lost else "") or ("TIMEOUT" if share.ended == "time" else "vanished")
        if self._tally.is_hopeless(share):
            raise TarmacError(self._hopeless(share, how))
        logger.warning(
            "Slurm job %s ended early (%s); its %d items go to another", share.job, how, share.left
        )
        share.attempt += 1
        self._submit([share])

    def _hopeless(self, share: Share, how: str) -> str:
        remedy = {
            "TIMEOUT": "; give engine.build.time a longer time",
            "OUT_OF_MEMORY": "; give engine.build.memory more, or fewer workers",
        }.get(how, "")
        log = log_of(self._plan, share.job)
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
