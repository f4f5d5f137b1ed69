"""What a rank measures between two rows of metrics: losses, and how its time went.

Losses stay on the device until a row is due, so that a GPU is not made to wait for the host at every step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch
from torch import Tensor


class Meter:
    """Covers the steps since the last `restart`."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._process = psutil.Process()
        self.restart()

    def restart(self) -> None:
        """Begin a new interval now; what happened since the last row (a checkpoint) counts for none."""
        self._losses: list[Tensor] = []
        self._waited_s = 0.0
        self._began = time.perf_counter()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time within is time without data."""
        began = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - began

    def add(self, loss: Tensor) -> None:
        """One step is done."""
        self._losses.append(loss.detach())

    def losses(self) -> list[float]:
        """Those of the interval's steps, in order; waits for the device."""
        losses: list[float] = torch.stack(self._losses).tolist()
        return losses

    def values(self) -> dict[str, float]:
        """The interval as metrics: mean loss (NaN if any was), speed, the share of time waiting for data."""
        losses = self.losses()
        elapsed_s = time.perf_counter() - self._began
        return {
            "train/loss": sum(losses) / len(losses),
            "train/samples_per_s": len(losses) * self._batch_size / elapsed_s,
            "train/data_wait": self._waited_s / elapsed_s,
            "train/step_s": elapsed_s / len(losses),
            "system/rss_bytes": self._process.memory_info().rss,
        }
