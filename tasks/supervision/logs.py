"""Reads what a run's processes print, from the newest attempt on, over restarts and requeues.

Where the agent starts the ranks again it sets their logs aside, and a new attempt has a folder of its own. So
whoever follows a log looks for the newest again and again. The one before stays open, as it is read to its
end first.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tasks.core.errors import UsageError
from tasks.runs import ledger, record
from tasks.runs.folder import RunFolder
from tasks.runs.jobs import job_in
from tasks.runs.ledger import Key
from tasks.supervision.status import look_at_run

POLL_S = 0.3
LOOK_S = 2.0
"""How often the run itself is looked at, to see whether anything is still to come."""
PIECE = 1 << 16


@dataclass(frozen=True)
class LogPart:
    """Bytes of a log; `begins` where those before them come from another."""

    path: Path
    content: bytes
    begins: bool


def log_of(run: RunFolder, rank: int | None, evaluation: Key | None) -> Path:
    """Return the newest log of a rank, of an evaluation's newest job, or the one that a person reads first;
    UsageError where there is no such log."""
    if evaluation is not None:
        return _evaluation_log(run, *evaluation)
    number = max(record.load_record(run).trained, 1)
    if rank is None:
        return look_at_run(run).log
    log = run.rank_log(number, rank)
    if not log.exists():
        there = sorted(path.stem.removeprefix("rank_") for path in log.parent.glob("rank_[0-9]*.log"))
        ranks = ", ".join(name for name in there if name.isdigit()) or "none"
        raise UsageError(f"--rank: attempt {number} of {run.name} has no log of rank {rank}; it has: {ranks}")
    return log


def last_lines(log: Path, lines: int) -> list[str]:
    """Return the last lines of a log, which may be long; empty where it is not there yet."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            content = b""
            while size > 0 and content.count(b"\n") <= lines:
                piece = min(PIECE, size)
                size -= piece
                file.seek(size)
                content = file.read(piece) + content
    except FileNotFoundError:
        return []
    return list(deque(content.decode("utf-8", "replace").splitlines(), lines))


def follow_log(find: Callable[[], Path], is_over: Callable[[], bool], path: Path) -> Iterator[LogPart]:
    """Yield what is appended to a log from now on, and what the logs hold that `find` returns after it; ends
    when nothing came since `is_over`. Where `find` raises UsageError, its log is waited for."""
    logs: dict[int, BinaryIO] = {}
    try:
        log, newest, begins = _opened(lambda: path, logs), None, False
        if log is not None:
            log.seek(0, os.SEEK_END)
        looked, over = time.monotonic(), False
        while True:
            if log is not None and (content := log.read(PIECE)):
                yield LogPart(path, content, begins)
                begins = False
            elif newest is not None:  # what was written to the last one until this was found has been read
                log, path, newest, begins = newest, Path(newest.name), None, True
            elif (found := _opened(find, logs)) is not None and found is not log:
                newest = found
            elif over:
                return
            elif time.monotonic() - looked >= LOOK_S:
                looked, over = time.monotonic(), is_over()  # read once more, as it may have written until now
            else:
                time.sleep(POLL_S)
    finally:
        for one in logs.values():
            one.close()


def _evaluation_log(run: RunFolder, step: int, task: str) -> Path:
    entries = [entry for entry in ledger.read_ledger(run.ledger) if entry.key == (step, task)]
    jobs = [job for entry in entries if (job := job_in(run, entry.job)) is not None]
    if jobs:
        return jobs[-1].log
    known = sorted({f"{entry.step}/{entry.task}" for entry in ledger.read_ledger(run.ledger)})
    there = ", ".join(known) or "none yet"
    raise UsageError(f"--evaluation: no job was started for {step}/{task} of {run.name}; it has: {there}")


def _opened(find: Callable[[], Path], logs: dict[int, BinaryIO]) -> BinaryIO | None:
    """Return the log that `find` names, where it was read to if it is among `logs`, which are kept by their
    inodes; None where there is none yet, as before an attempt's ranks start, and while they start again."""
    try:
        log = find().open("rb", buffering=0)
    except (UsageError, FileNotFoundError):
        return None
    known = logs.setdefault(os.fstat(log.fileno()).st_ino, log)
    if known is not log:
        log.close()
    return known
