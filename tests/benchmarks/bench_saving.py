"""How long a checkpoint holds up the training: written aside, as it is, and in the training's own time.

A model of 100 MB with AdamW's two moments, 300 MB a checkpoint, trained on the CPU by two threads. Each round
times the same steps three times: without a checkpoint, with one written aside, with one written in between.
What a checkpoint costs is the difference, as a share of a minute: that of one a minute.

    .venv/bin/python -m tests.benchmarks.bench_saving
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tasks.runs.folder import RunFolder
from tasks.training import checkpoints
from tasks.training.checkpoints import CheckpointSaver

WIDTH, LAYERS, BATCH = 2048, 6, 16
ROUNDS, STEPS = 3, 20


class Training:
    """Steps on random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
        self.model = nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.batch = torch.randn(BATCH, WIDTH)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, object]:
        return {"optimizer": self.optimizer.state_dict()}


def timed(training: Training, begin: Callable[[], None]) -> float:
    """Seconds for STEPS steps, the first of which is followed by `begin`."""
    began = time.perf_counter()
    for number in range(STEPS):
        training.step()
        if not number:
            begin()
    return time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(2)
    training = Training()
    size = sum(value.numel() * value.element_size() for value in training.model.state_dict().values())
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        aside = CheckpointSaver(run)

        def save_aside() -> None:
            aside.save(1, training.model, training.state())

        def save_between() -> None:
            checkpoints.save_checkpoint(run, 2, training.model, training.state())

        timed(training, save_aside)
        aside.wait()
        cost: dict[str, list[float]] = {"written aside": [], "written in between": []}
        for _ in range(ROUNDS):
            alone = timed(training, lambda: None)
            for name, begin in (("written aside", save_aside), ("written in between", save_between)):
                cost[name].append(timed(training, begin) - alone)
                began = time.perf_counter()
                aside.wait()
                if time.perf_counter() - began > 0.01:
                    print(f"{name}: the writing outlasted the {STEPS} steps, so its cost is understated")
    print(
        f"{size / 1e6:.0f} MB of weights, a step {alone / STEPS:.3f} s, load average {os.getloadavg()[0]:.1f}"
    )
    for name, seconds in cost.items():
        middle = statistics.median(seconds)
        print(
            f"{name:18} {middle:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}) "
            f"a checkpoint: {middle / 60:.2%} of a minute"
        )


if __name__ == "__main__":
    main()
