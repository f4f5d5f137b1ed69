"""What a rank measures between two rows of metrics: losses, and how its time went.

Losses stay on the device until a row is due, so that a GPU is not made to wait for the host at every step.
A GPU works on what was queued while the host waits for the next batch: only the time in which it had nothing
to do counts as waiting for data. Events in its queue before and after the wait tell that, and are read when a
row is due. A CPU does nothing else while it waits, so there all of it counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import torch
from torch import Tensor


class Wait(NamedTuple):
    """The host waited so long for a batch, between two events in the GPU's queue."""

    host_s: float
    before: torch.cuda.Event | None
    after: torch.cuda.Event | None

    def idle_s(self) -> float:
        """How long the GPU had nothing to do in it, and no longer than the host waited: what else it lacked
        work for is no wait for data. Waits for the GPU to come to the later event."""
        if self.before is None or self.after is None:
            return self.host_s
        self.after.synchronize()
        idle_ms: float = self.before.elapsed_time(self.after)
        return min(idle_ms / 1000, self.host_s)


class Meter:
    """Covers the steps since the last `restart`."""

    def __init__(self, batch_size: int, is_cuda: bool = False) -> None:
        self._batch_size = batch_size
        self._is_cuda = is_cuda
        self._process = psutil.Process()
        self.restart()

    @property
    def steps(self) -> int:
        """Those of the interval, skipped ones among them."""
        return len(self._losses) + self._skipped

    def skip(self) -> None:
        """One step changed nothing, and its loss counts for none."""
        self._skipped += 1

    def restart(self) -> None:
        """Begin a new interval now; what happened since the last row (a checkpoint) counts for none."""
        self._losses: list[Tensor] = []
        self._logs: dict[str, list[Tensor]] = {}
        self._skipped = 0
        self._waits: list[Wait] = []
        self._began = time.perf_counter()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time within is time without data."""
        before, began = self._mark(), time.perf_counter()
        yield
        self._waits.append(Wait(time.perf_counter() - began, before, self._mark()))

    def _mark(self) -> torch.cuda.Event | None:
        """An event at the end of what is queued for the GPU; None without one."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def add(self, loss: Tensor, logs: Mapping[str, Tensor]) -> None:
        """One step is done; `logs` are further figures of it, of shape [] and detached."""
        self._losses.append(loss.detach())
        for name, value in logs.items():
            self._logs.setdefault(name, []).append(value)

    def losses(self) -> list[float]:
        """Those of the interval's steps, in order; waits for the device."""
        losses: list[float] = torch.stack(self._losses).tolist() if self._losses else []
        return losses

    def values(self) -> dict[str, float]:
        """The interval as metrics: mean loss (NaN if any was, none if all steps were skipped), speed, the
        share of time waiting for data."""
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
