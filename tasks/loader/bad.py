"""What a bad sample is to the loader: where it lies, what is wrong with it, and what replaces it.

Only data can be bad: bytes that changed, a shard that is missing or cut, a member that does not decode. A
defect of a transform, or storage that does not answer, always ends the training; replacing samples would hide
such a fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from tasks.core.errors import DataError

OnBad = Literal["raise", "replace"]
Reason = Literal["member.checksum", "member.undecodable", "shard.missing", "shard.truncated"]
"""Codes of verify, which reports the same about the sample."""


@dataclass(frozen=True)
class Defect:
    """One bad sample: `shard` as `train/000007.tar`, `row` within it (None in a stream). `key` is empty where
    it is unknown. `member` is None where the whole sample is lost, and joined by `|` where it may be one of
    several."""

    split: str
    shard: str
    row: int | None
    key: str
    member: str | None
    reason: Reason

    def __str__(self) -> str:
        row = "" if self.row is None else f" row {self.row}"
        key = f", key {self.key!r}" if self.key else ""
        names = (self.member or "").split("|")
        one_of = "one of " if len(names) > 1 else ""
        member = f", member {one_of}{', '.join(names)}" if self.member else ""
        return f"{self.shard}{row}{key}{member}"


class BadSampleError(DataError):
    """A sample cannot be read as it was written; the message names the place, the reason, and what to do."""

    def __init__(self, text: str, defect: Defect) -> None:
        super().__init__(text)
        self.defect = defect


@dataclass(frozen=True)
class PassedOver:
    """A bad sample that a batch lacks. `stand_in` is the key of the sample in its place; None where there is
    none, as when a held-out split is read."""

    position: int
    defect: Defect
    stand_in: str | None


@dataclass
class Budget:
    """How many samples may be passed over in an epoch of `samples` positions: at most `most`."""

    name: str
    samples: int
    most: int
    hint: str
    """What to do, for the message."""
    epoch: int = 0
    spent: int = 0

    def spend(self, positions: Iterable[int]) -> None:
        """Count these samples, which come in order; DataError when they are too many."""
        for epoch, of_epoch in groupby(positions, lambda position: position // self.samples):
            if epoch != self.epoch:
                self.epoch, self.spent = epoch, 0
            self.spent += len(list(of_epoch))
            if self.spent > self.most:
                raise DataError(
                    f"{self.name}: {self.spent} samples of an epoch are bad, and loader.bad_budget lets "
                    f"{self.most} be passed over; {self.hint}"
                )


def most_replaced(share: float, samples: int, ranks: int = 1) -> int:
    """Return the budget of a rank: it may replace this share of the samples that it reads in an epoch, and at
    least one."""
    return max(int(share * samples / ranks), 1)


def most_left_out(share: float, samples: int) -> int:
    """Return the budget of a split that is read once: it may lack this share of its samples, and at least
    one, but never all."""
    return min(max(int(share * samples), 1), samples - 1)
