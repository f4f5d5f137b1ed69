"""What the ranks measure between two rows of metrics, and the checks that end a training that is not finite.

The first rank writes the rows, of what all have measured: the mean, and with `_worst` the highest. Losses
stay on the device until a row is due, so that a GPU is not made to wait for the host at every step. A GPU
works through its queue while the host waits for the next batch: only the time in which the queue was empty
counts as waiting for data. Events in the queue before and after the wait show it, and are read when a row is
due. A CPU does nothing else while it waits, so there all of the time counts.

A loss or a weight that is not finite spreads to all weights within a step, so nothing is trained or saved
after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn

from tasks.core.errors import DataError
from tasks.training.ranks import ALONE, Ranks
from tasks.training.sharded_weights import local

LEAST_SCALE = 1.0
"""The least loss scale of fp16. It begins at 65,536 and is halved at every overflow."""
WIDER = {"bf16": "fp32", "fp16": "bf16"}


class Wait(NamedTuple):
    """How long the host waited for a batch, between two events in the GPU's queue."""

    host_s: float
    before: torch.cuda.Event | None
    after: torch.cuda.Event | None

    def idle_s(self) -> float:
        """Return how long the GPU had nothing to do, at most as long as the host waited: other idle time is
        not a wait for data. This call waits until the GPU reaches the later event."""
        if self.before is None or self.after is None:
            return self.host_s
        self.after.synchronize()
        idle_ms: float = self.before.elapsed_time(self.after)
        return min(idle_ms / 1000, self.host_s)


class Overflow(NamedTuple):
    """Whether a step of fp16 changed nothing, because its gradients were not finite, and the loss scale after
    it; both of shape []."""

    is_skipped: Tensor
    scale: Tensor


class Outcomes(NamedTuple):
    """The losses of the steps of an interval, and the loss scale after each that was skipped, whose loss is
    left out; by step."""

    losses: dict[int, float]
    skipped: dict[int, float]


Mark = torch.cuda.Event | float
"""A point in time: an event in a GPU's queue, or the seconds of this machine's clock."""


class Laps:
    """Divides the time of a rank's steps: what passes between two marks counts for the name of the second."""

    def __init__(self, is_cuda: bool = False) -> None:
        self._is_cuda = is_cuda
        self._laps: list[tuple[str, Mark, Mark]] = []
        self.begin()

    def begin(self) -> None:
        """Begin a lap now; what passed since the last one counts for nothing."""
        self._last = self._mark()

    def lap(self, name: str) -> None:
        """End a lap, and begin the next."""
        now = self._mark()
        self._laps.append((name, self._last, now))
        self._last = now

    def take(self) -> dict[str, float]:
        """Return the seconds by name, and forget them. This call waits until the GPU reaches the last
        mark."""
        found: dict[str, float] = {}
        for name, before, after in self._laps:
            if isinstance(before, float) or isinstance(after, float):
                assert isinstance(before, float) and isinstance(after, float)
                seconds = after - before
            else:
                after.synchronize()
                seconds = before.elapsed_time(after) / 1000
            found[name] = found.get(name, 0.0) + seconds
        self._laps.clear()
        return found

    def _mark(self) -> Mark:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class Meter:
    """Measures the steps since the last `restart`."""

    def __init__(
        self,
        batch_size: int,
        is_cuda: bool = False,
        laps: Laps | None = None,
        share_per_s: float | None = None,
    ) -> None:
        """`laps` are those of the step; `share_per_s` is the share of what the device could compute in a
        second that a step is, where that is known."""
        self._batch_size = batch_size
        self._is_cuda = is_cuda
        self._laps = Laps() if laps is None else laps
        self._share_per_s = share_per_s
        self._process = psutil.Process()
        self.restart()

    @property
    def steps(self) -> int:
        """Steps in the interval, including skipped ones."""
        return len(self._losses)

    def restart(self) -> None:
        """Begin a new interval now; the time since the last row (for a checkpoint) belongs to none."""
        self._losses: list[Tensor] = []
        self._logs: list[Mapping[str, Tensor]] = []
        self._overflows: list[Overflow] = []
        self._waits: list[Wait] = []
        self._counts: dict[str, float] = {}
        self._laps.take()
        self._began = time.perf_counter()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as time without data."""
        before, began = self._mark(), time.perf_counter()
        yield
        self._waits.append(Wait(time.perf_counter() - began, before, self._mark()))

    def _mark(self) -> torch.cuda.Event | None:
        """Return an event at the end of what is queued for the GPU; None without a GPU."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def add(self, loss: Tensor, logs: Mapping[str, Tensor], overflow: Overflow | None = None) -> None:
        """Count one step; `logs` are further figures of it, of shape [] and detached."""
        self._losses.append(loss.detach())
        self._logs.append(logs)
        if overflow is not None:
            self._overflows.append(overflow)

    def count(self, counts: Mapping[str, float]) -> None:
        """Add what this rank's part of a batch holds, by `Recipe.counts`."""
        for name, value in counts.items():
            self._counts[name] = self._counts.get(name, 0.0) + value

    def outcomes(self, last: int) -> Outcomes:
        """Return what became of the interval's steps, of which `last` is the last; waits for the device."""
        numbers = range(last - self.steps + 1, last + 1)
        losses: dict[int, float] = dict(zip(numbers, _on_host(self._losses), strict=True))
        if not self._overflows:
            return Outcomes(losses, {})
        flags = _on_host([one.is_skipped for one in self._overflows])
        scales = _on_host([one.scale for one in self._overflows])
        skipped = {number: scale for number, flag, scale in zip(numbers, flags, scales, strict=True) if flag}
        return Outcomes({number: losses[number] for number in numbers if number not in skipped}, skipped)

    def values(self, ranks: Ranks = ALONE) -> dict[str, float]:
        """Return the interval as metrics, on all ranks at once: mean loss (NaN if any was, none if all steps
        were skipped), speed, the parts of a step's time, and the share of it spent waiting for data."""
        found = self.outcomes(self.steps - 1)
        losses, logs = list(found.losses.values()), [self._logs[step] for step in found.losses]
        elapsed_s = time.perf_counter() - self._began
        own = {
            "train/step_s": elapsed_s / self.steps,
            "train/data_wait": sum(wait.idle_s() for wait in self._waits) / elapsed_s,
            **{f"train/{name}_s": seconds / self.steps for name, seconds in self._laps.take().items()},
            "system/rss_bytes": float(self._process.memory_info().rss),
        }
        means, worst, counts = _of_ranks(ranks, own, self._counts)
        step_s = means["train/step_s"]
        return {
            **({"train/loss": sum(losses) / len(losses)} if losses else {}),
            "train/samples_per_s": self._batch_size / step_s,
            **means,
            **worst,
            **_figures(counts, step_s * self.steps),
            **({"train/mfu": self._share_per_s / step_s} if self._share_per_s is not None else {}),
            **{
                f"train/{name}": float(torch.stack([one[name] for one in logs]).mean())
                for name in (logs[0] if logs else ())
            },
        }


def _on_host(values: Sequence[Tensor]) -> list[Any]:
    found: list[Any] = torch.stack(list(values)).tolist() if values else []
    return found


def pauses(own: Mapping[str, float], ranks: Ranks) -> dict[str, float]:
    """Return the mean of what the ranks measured, and with `_worst` the highest of several."""
    means, worst, _ = _of_ranks(ranks, own, {})
    return {**means, **worst}


def _of_ranks(
    ranks: Ranks, own: Mapping[str, float], counts: Mapping[str, float]
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """The means of the ranks' own figures, the highest where there are several ranks, and the sums of the
    counts."""
    if ranks.count == 1:
        return dict(own), {}, dict(counts)
    mine = torch.tensor([*own.values(), *counts.values()], dtype=torch.float64)
    each = torch.stack(ranks.of_all(mine))
    means = dict(zip(own, each.mean(dim=0).tolist(), strict=False))
    worst = dict(zip((f"{name}_worst" for name in own), each.amax(dim=0).tolist(), strict=False))
    sums = dict(zip(counts, each.sum(dim=0).tolist()[len(own) :], strict=True))
    return means, worst, sums


def _figures(counts: Mapping[str, float], seconds: float) -> dict[str, float]:
    """What the counts say of rows: tokens per second, the share of a row's places that hold one, and pictures
    per row; nothing where samples are not rows."""
    if "rows" not in counts:
        return {}
    return {
        "train/tokens_per_s": counts["tokens"] / seconds,
        "train/fill": counts["tokens"] / counts["places"],
        "train/pictures_per_row": counts["pictures"] / counts["rows"],
    }


def check_outcomes(outcomes: Outcomes, precision: str) -> None:
    """Raise DataError for the first step whose loss is not finite, or after which no loss scale is small
    enough any more: then it is no overflow of fp16."""
    for step, loss in outcomes.losses.items():
        if not math.isfinite(loss):
            raise DataError(
                f"the loss is {loss} at step {step}, so the weights are lost; {_remedy(precision)}"
            )
    for step, scale in outcomes.skipped.items():
        if scale < LEAST_SCALE:
            raise DataError(
                f"the weights are lost after step {step}: its gradients are not finite even at a loss scale "
                f"of {scale:g}; {_remedy('fp16')}"
            )


def check_weights(model: nn.Module, step: int, precision: str) -> None:
    """Raise DataError for the first parameter or buffer that is not finite after `step`."""
    for name, tensor in model.state_dict().items():
        if not local(tensor).isfinite().all():
            raise DataError(
                f"the weights are lost after step {step}: {name} is not finite; they are not saved; "
                f"{_remedy(precision)}"
            )


def check_validation(loss: float, step: int, precision: str) -> None:
    """Raise DataError for a loss on held-out samples that is not finite; the weights are, as they were
    saved."""
    if not math.isfinite(loss):
        raise DataError(
            f"the validation loss is {loss} at step {step}: the weights are finite, and what they make of "
            f"the held-out samples is not; {_remedy(precision)}"
        )


def _remedy(precision: str) -> str:
    remedy = "lower train.lr or lengthen train.warmup"
    return remedy if precision == "fp32" else f"{remedy}, or try train.precision: {WIDER[precision]}"
