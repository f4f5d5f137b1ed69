"""What a rank measures between two rows of metrics, and the checks that end a training that is not finite.

Losses stay on the device until a row is due, so that a GPU is not made to wait for the host at every step. A
GPU works through its queue while the host waits for the next batch: only the time in which the queue was
empty counts as waiting for data. Events in the queue before and after the wait show it, and are read when a
row is due. A CPU does nothing else while it waits, so there all of the time counts.

A loss or a weight that is not finite spreads to all weights within a step, so nothing is trained or saved
after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import torch
from torch import Tensor, nn

from tasks.core.errors import DataError
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


class Meter:
    """Measures the steps since the last `restart`."""

    def __init__(self, batch_size: int, is_cuda: bool = False) -> None:
        self._batch_size = batch_size
        self._is_cuda = is_cuda
        self._process = psutil.Process()
        self.restart()

    @property
    def steps(self) -> int:
        """Steps in the interval, including skipped ones."""
        return len(self._losses) + self._skipped

    def skip(self) -> None:
        """Count one step that changed nothing and whose loss is left out."""
        self._skipped += 1

    def restart(self) -> None:
        """Begin a new interval now; the time since the last row (for a checkpoint) belongs to none."""
        self._losses: list[Tensor] = []
        self._logs: dict[str, list[Tensor]] = {}
        self._skipped = 0
        self._waits: list[Wait] = []
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

    def add(self, loss: Tensor, logs: Mapping[str, Tensor]) -> None:
        """Count one step; `logs` are further figures of it, of shape [] and detached."""
        self._losses.append(loss.detach())
        for name, value in logs.items():
            self._logs.setdefault(name, []).append(value)

    def losses(self) -> list[float]:
        """Return the losses of the interval's steps, in order; waits for the device."""
        losses: list[float] = torch.stack(self._losses).tolist() if self._losses else []
        return losses

    def values(self) -> dict[str, float]:
        """Return the interval as metrics: mean loss (NaN if any was, none if all steps were skipped), speed,
        and the share of time spent waiting for data."""
        losses = self.losses()
        elapsed_s = time.perf_counter() - self._began
        return {
            **({"train/loss": sum(losses) / len(losses)} if losses else {}),
            "train/samples_per_s": self.steps * self._batch_size / elapsed_s,
            "train/data_wait": sum(wait.idle_s() for wait in self._waits) / elapsed_s,
            "train/step_s": elapsed_s / self.steps,
            "system/rss_bytes": self._process.memory_info().rss,
            **{f"train/{name}": float(torch.stack(values).mean()) for name, values in self._logs.items()},
        }


def check_losses(losses: Sequence[float], last_step: int, precision: str) -> None:
    """Raise DataError for the first of the steps up to `last_step` whose loss is not finite."""
    for step, loss in enumerate(losses, last_step - len(losses) + 1):
        if not math.isfinite(loss):
            raise DataError(
                f"the loss is {loss} at step {step}, so the weights are lost; {_remedy(precision)}"
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


def check_scale(scale: float, step: int, loss: float) -> None:
    """Raise DataError when no loss scale is small enough any more: then it is no overflow of fp16."""
    if scale < LEAST_SCALE:
        raise DataError(
            f"the weights are lost after step {step}: its gradients are not finite even at a loss scale of "
            f"{scale:g}, and its loss is {loss}; {_remedy('fp16')}"
        )


def _remedy(precision: str) -> str:
    remedy = "lower train.lr or lengthen train.warmup"
    return remedy if precision == "fp32" else f"{remedy}, or try train.precision: {WIDER[precision]}"
