"""What is wrong with the files beside the tars: one finding a file, however many of its facts are off."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tasks.core.findings import Finding
from tasks.dataset.verify.faults import REBUILD, RIGHTS, fault

FORBIDDEN = f"unreadable: {os.strerror(errno.EACCES)}"
"""The problem of a file that this user may not read: it may be sound."""
MOST = 3
"""Problems of a file that its finding tells; the rest is counted."""


@dataclass
class _File:
    remedy: str
    problems: list[str] = field(default_factory=list)
    evidence: dict[str, Any] = field(default_factory=dict)


class Ledger:
    """Problems by file. `confirmed` files are as they were built, `differing` ones are not, both by the
    checksums in build.json; a file that is neither has none."""

    def __init__(self) -> None:
        self.confirmed: frozenset[str] = frozenset()
        self.differing: dict[str, str] = {}
        self.shut: frozenset[str] = frozenset()
        """Splits whose folders this user may not read, which is told once for all that is in them."""
        self._files: dict[str, _File] = {}
        self._at_odds: dict[str, set[str]] = {}

    def add(self, file: str, problem: str, remedy: str = REBUILD, **evidence: Any) -> None:
        known = self._files.setdefault(file, _File(remedy))
        if problem not in known.problems:
            known.problems.append(problem)
        known.evidence |= evidence

    def note(self, file: str, **evidence: Any) -> None:
        """More about a file of which something was told."""
        if file in self.differing:
            self.add(file, self.differing[file])
        self._files[file].evidence.update(evidence)

    def count(self, file: str, what: str, number: int) -> None:
        """So many more of what was told of a file."""
        self.note(
            file, **{what: (self._files[file].evidence.get(what, 0) if file in self._files else 0) + number}
        )

    def at_odds(self, file: str, other: str, problem: str) -> None:
        """`file` does not fit to `other`; that is the other's fault where only the other was changed, and may
        be its fault where several say so."""
        if file in self.confirmed and other not in self.confirmed and self.is_faulty(other):
            file = other
        self.add(file, problem)
        self._at_odds.setdefault(other, set()).add(file)
        against = sorted(self._at_odds[other] - {other})
        if len(against) > 1 and other not in self.confirmed:
            self.add(other, f"{against[0]} and {against[1]} agree that it is wrong")

    def is_faulty(self, file: str) -> bool:
        return file in self._files or file in self.differing

    def findings(self) -> Iterator[Finding]:
        """File by file; of one that differs from what was built and shows nothing else, just that."""
        for file in sorted({*self._files, *self.differing}):
            if file.rpartition("/")[0] in self.shut:
                continue
            known = self._files.get(file) or _File(REBUILD, [self.differing[file]])
            problem = "; ".join(known.problems[:MOST])
            if len(known.problems) > MOST:
                problem += f"; and {len(known.problems) - MOST} more"
            remedy = RIGHTS if FORBIDDEN in known.problems else known.remedy
            yield fault(code_of(file), remedy, place_of(file), problem=problem, **known.evidence)


def code_of(file: str) -> str:
    return "index.mismatch" if file.startswith("index/") else "manifest.invalid"


def place_of(file: str) -> dict[str, Any]:
    """Of a file that belongs to a split: `samples/val.parquet`, `index/val.npy`, `val/sizes.json`."""
    folder, _, name = file.rpartition("/")
    if folder in ("samples", "index"):
        return {"split": name.rpartition(".")[0], "file": file}
    return {"split": folder, "file": file} if folder else {"file": file}
