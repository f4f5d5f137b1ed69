"""What one pass over a shard has shown, and what is wrong with the shard as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tasks.core.findings import Finding
from tasks.dataset.verify.collected import Collected
from tasks.dataset.verify.entries import Cut, Gap
from tasks.dataset.verify.faults import REBUILD, REMAKE, RIGHTS, fault, where
from tasks.dataset.verify.judging import Keys
from tasks.dataset.verify.records import Task
from tasks.dataset.verify.spans import Spans

REPLACE = "make or fetch this tar again"
"""What helps where there is no source to make a shard from."""
DIGITS = 12
"""Of a checksum, for a message."""


@dataclass(frozen=True)
class Look:
    """Samples, checksum and damage of a tar. `error` is why it could not be read to its end; when it
    `is_forbidden`, that is no fault of the tar."""

    samples: Collected
    blake3: str | None
    size_bytes: int
    cut: Cut | None = None
    gap: Gap | None = None
    gaps: int = 0
    error: str | None = None
    is_forbidden: bool = False

    @property
    def end(self) -> int | None:
        """Where it ends too early, or can be read no further."""
        return self.cut.offset if self.cut else self.size_bytes if self.error else None

    def is_as_expected(self, task: Task) -> bool:
        return self.blake3 is not None and (task.expected is None or task.expected.blake3 == self.blake3)


def faults_of_shard(
    task: Task, look: Look, spans: Spans | None, keys: Keys, differing: list[int]
) -> Iterator[Finding]:
    at = where(task.name)
    remedy = REMAKE if task.expected else REPLACE
    if look.error is not None:
        yield fault("shard.checksum", RIGHTS if look.is_forbidden else remedy, at, problem=look.error)
        return
    count = len(look.samples.keys) - len(keys.continued)
    if look.cut is not None:
        whole = count - len(look.samples.torn)
        yield fault("shard.truncated", remedy, at, problem=str(look.cut), whole_samples=whole)
    evidence = _damage(look, differing)
    if not look.is_as_expected(task) and task.expected and look.blake3 and (evidence or look.cut is None):
        evidence |= {"blake3": look.blake3[:DIGITS], "expected": task.expected.blake3[:DIGITS]}
    if evidence:
        yield fault("shard.checksum", remedy, at, **evidence)
    if task.expected is None or look.cut or look.gaps:
        return
    if count != task.expected.samples:
        yield fault("shard.count", REMAKE, at, samples=count, expected=task.expected.samples)
    elif spans is not None and look.is_as_expected(task) and not differing:
        yield from _misplaced(task, look, spans, keys)


def _damage(look: Look, differing: list[int]) -> dict[str, Any]:
    """What is wrong besides an early end."""
    evidence: dict[str, Any] = {}
    if look.gap is not None:
        evidence["problem"] = str(look.gap)
        if look.gaps > 1:
            evidence["gaps"] = look.gaps
    elif look.cut is not None and differing:
        evidence["problem"] = f"{len(differing)} samples before its end differ from what was built"
    return evidence


def _misplaced(task: Task, look: Look, spans: Spans, keys: Keys) -> Iterator[Finding]:
    """As many samples as the index says, in other places."""
    starts = look.samples.starts
    if keys.continued:
        starts = [start for number, start in enumerate(starts) if number not in keys.continued]
    if starts != spans.starts and task.expected is not None:
        at = {**where(task.name), "file": f"index/{task.expected.split}.npy"}
        others = sorted(set(spans.starts).difference(starts))
        problem = f"no sample starts at byte {others[0]:,}; {len(others)} of its rows are elsewhere"
        yield fault("index.mismatch", REBUILD, at, problem=problem)
