"""How long a checkpoint holds up the training: written aside, as it is, and in the training's own time.

A model of 100 MB with AdamW's two moments, 300 MB a checkpoint, trained on the CPU by two threads. The same steps
are timed without a checkpoint, and with one written aside or in between. What a checkpoint costs is the difference, as
a share of a minute: that of one a minute.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from tasks.runs.folder import RunFolder
from tasks.training import checkpoints
from tasks.training.checkpoints import CheckpointSaver
from tests.benchmarks.harness import Benchmark, Case, Column, Failed, Row, Setup, call

WIDTH, LAYERS, BATCH = 2048, 6, 16
STEPS = 20
ASIDE, BETWEEN = "written aside", "written in between"


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


def cost(way: str) -> Row:
    """Of one checkpoint; `percent` is of a minute."""
    torch.set_num_threads(2)
    training = Training()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        aside = CheckpointSaver(run)

        def save_aside() -> None:
            aside.save(1, training.model, training.state())

        def save_between() -> None:
            checkpoints.save_checkpoint(run, 2, training.model, training.state())

        timed(training, save_aside)
        aside.wait()
        before = timed(training, lambda: None)
        with_one = timed(training, save_aside if way == ASIDE else save_between)
        began = time.perf_counter()
        aside.wait()
        if time.perf_counter() - began > 0.01:
            raise Failed(f"the writing outlasted the {STEPS} steps, so its cost is understated")
        alone = (before + timed(training, lambda: None)) / 2
        seconds = with_one - alone
    return {"s": seconds, "percent": seconds / 60 * 100, "step_s": alone / STEPS}


def cases(setup: Setup) -> Iterator[Case]:
    yield Case("100 MB of weights", {way: call(cost, way) for way in (ASIDE, BETWEEN)})


BENCHMARKS = (
    Benchmark(
        "saving",
        "Saving a checkpoint",
        "How long a checkpoint of 100 MB of weights and AdamW's two moments, 300 MB in all, holds up a training on two "
        "threads of the CPU: written aside, as the training does it, and in between. Steps with a checkpoint are timed "
        "against steps without; noise of the machine can make the difference negative.",
        cases,
        (
            Column("s", "s of a checkpoint", ".2f"),
            Column("percent", "% of a minute", ".2f"),
            Column("step_s", "s of a step", ".3f"),
        ),
        packages=("torch", "safetensors"),
    ),
)
