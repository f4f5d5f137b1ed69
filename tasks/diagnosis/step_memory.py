"""Predicts whether a step of a training fits into memory, by the peak of a small step.

The memory of a pass grows with its samples, while model, gradients and optimizer do not: two samples show
both. Small peaks drown in the other allocations of a process. So where the figure would refuse a training,
larger passes that still fit are measured, up to the training's own. An out-of-memory kill names no key of the
config; this error does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.core.units import counted
from tasks.diagnosis.memory import SPARE, gigabytes
from tasks.models.recipes import levers

FIRST = 2
"""The samples of the first pass that is measured."""


@dataclass(frozen=True)
class Room:
    """The bytes that the ranks share, or that each has on its GPU; `by` names what limits them."""

    bytes: float
    by: str
    ranks: int = 1


@dataclass(frozen=True)
class StepCost:
    """The bytes of a rank's step: `fixed` ones, and those of each `sample` of a pass, by a pass of `measured`
    samples."""

    fixed: float
    sample: float
    measured: int

    def peak(self, samples: int) -> float:
        return self.fixed + self.sample * samples

    def fits(self, samples: int, room: Room) -> bool:
        return room.ranks * self.peak(samples) <= SPARE * room.bytes


def cost_of(peak_of: Callable[[int], float], fixed: float, samples: int, room: Room) -> StepCost:
    """Measure the cost; `peak_of` runs a pass of so many samples, the training's passes have `samples`."""

    def measured(count: int) -> StepCost:
        return StepCost(fixed, max(peak_of(count) - fixed, 0.0) / count, count)

    if not StepCost(fixed, 0.0, 0).fits(0, room):
        return StepCost(fixed, math.inf, 0)
    found = measured(min(FIRST, samples))
    while not found.fits(samples, room):
        count = min(2 * found.measured, samples)
        if count == found.measured or not found.fits(2 * count, room):  # others may take memory meanwhile
            break
        found = measured(count)
    return found


def require_room(config: Config, cost: StepCost, samples: int, room: Room, unit: str) -> None:
    """Raise UsageError with the keys to lower where a pass of so many samples does not fit."""
    assert config.train is not None
    if cost.fits(samples, room):
        return
    there = f"{gigabytes(room.bytes)} ({room.by})"
    if not cost.measured:
        raise UsageError(
            f"train.model: with gradients and AdamW's averages a rank takes {gigabytes(cost.fixed)}, "
            f"and there are {there} for {counted(room.ranks, 'rank')}; take a smaller model, or freeze parts"
        )
    few = counted(cost.measured, unit.removesuffix("s"))
    if math.isinf(cost.sample):
        raise UsageError(
            f"train.micro_batch: a pass of {few} takes more memory than there is, {there}: "
            f"lower {levers(config.train)}"
        )
    largest = int((SPARE * room.bytes / room.ranks - cost.fixed) / cost.sample) if cost.sample else 0
    each = f" on each of {room.ranks} ranks" if room.ranks > 1 else ""
    fitting = f"about {largest:,} fit" if largest > 0 else "not even one fits"
    raise UsageError(
        f"train.micro_batch: a pass of {samples:,} {unit} takes {gigabytes(cost.peak(samples))}{each}, "
        f"by the peak of {few}, and there are {there}; {fitting}: lower {levers(config.train)}"
    )
