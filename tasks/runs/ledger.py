"""`ledger.jsonl`: every evaluation job's history, appended by the run's agent and folded by its readers.

Appending costs one line and survives a crash; the last line on an evaluation holds its state.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from tasks.core.files import append_line, read_lines

EvaluationState = Literal["submitted", "running", "done", "failed", "lost"]
ENDED: frozenset[EvaluationState] = frozenset({"done", "failed", "lost"})
Key = tuple[int, str]
"""Step and task."""


@dataclass(frozen=True)
class LedgerEntry:
    """The state of one evaluation. `uid` is the digest of what was asked; `attempt` counts its tries from 1.

    `job` is the job as `tasks.runs.jobs.Job` writes itself, its folder relative to the run's; None when none
    was started. `at` is when the entry was written, `since` when the question was put, which with `uid` makes
    the question that a result repeats. `refusals` counts the submissions in a row that were refused, which
    are no tries, since `refused_since`. `tried` holds the reason of each try that ended without a result.
    """

    uid: str
    step: int
    task: str
    state: EvaluationState
    job: dict[str, Any] | None
    attempt: int
    at: float
    since: float = 0.0
    reason: str = ""
    refusals: int = 0
    refused_since: float = 0.0
    tried: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return self.step, self.task

    @property
    def is_final(self) -> bool:
        return self.state in ENDED

    def having(self, **changes: Any) -> LedgerEntry:
        return replace(self, **changes)

    @property
    def waits_to_be_tried_again(self) -> bool:
        return bool(self.tried) and len(self.tried) == self.attempt and not self.is_final

    def having_been_refused(self, reason: str) -> LedgerEntry:
        """Return the entry with one more refusal; the try does not count."""
        since = self.refused_since if self.refusals else time.time()
        return replace(
            self, attempt=self.attempt - 1, reason=reason, refusals=self.refusals + 1, refused_since=since
        )


FIELDS = tuple(one.name for one in fields(LedgerEntry))


def append(path: Path, entry: LedgerEntry) -> None:
    """Append one line; a line torn by a crash before it stays a line of its own."""
    append_line(path, json.dumps(vars(entry), ensure_ascii=False))


def read_ledger(path: Path) -> list[LedgerEntry]:
    """Return all entries; lines that are no entry are skipped, and fields that a newer Tarmac has added:
    without its entry an evaluation would be done again."""
    entries = []
    for row in read_lines(path)[0]:
        known = {name: row[name] for name in FIELDS if name in row}
        try:
            entry = LedgerEntry(**{**known, "tried": tuple(known.get("tried", ()))})
        except TypeError:
            continue
        if isinstance(entry.step, int) and isinstance(entry.task, str) and isinstance(entry.at, int | float):
            entries.append(entry)
    return entries


def fold(entries: Iterable[LedgerEntry]) -> dict[Key, LedgerEntry]:
    """Return the last entry on each evaluation."""
    return {entry.key: entry for entry in entries}
