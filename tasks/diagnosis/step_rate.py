"""What a training takes: the samples a second that a few of its steps go through when nothing is waited for.

One batch is used again and again, so the loader has no part in it. The steps are plain ones: forward,
backward and AdamW, on the device that the training would have. Weight averages and an exchange between ranks
are left out, which errs on the safe side: the training takes no more than this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from tasks.core.schema import Train
from tasks.models.recipes import Recipe

MEASURED_S, LEAST_STEPS, MOST_STEPS = 2.0, 2, 20
LONG_STEP_S = 20.0
"""The first step, which sets up what all use, is timed only where it takes longer; then it is all."""
LOWER = {"bf16": torch.bfloat16, "fp16": torch.float16}


def samples_taken_per_s(recipe: Recipe, train: Train, batch: Mapping[str, Any]) -> float:
    """Samples a second of one rank, by the fastest of some steps on `batch`: what else the machine does at
    the time must not make the training seem slow, or it would be given too few workers."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(train.threads)
    state = torch.get_rng_state()
    task = recipe.task(recipe.build_model(pretrained=False).to(device)).train()
    torch.set_rng_state(state)
    optimizer = torch.optim.AdamW(task.parameters(), lr=0.0, fused=True)
    lower = LOWER.get(train.precision)
    here = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}

    def step() -> None:
        optimizer.zero_grad()
        with nullcontext() if lower is None else torch.autocast(device.type, lower):
            loss = task(here)
        (loss.sum / loss.weight).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    seconds = [_timed(step)]
    if seconds[0] < LONG_STEP_S:
        began, seconds = time.perf_counter(), [_timed(step) for _ in range(LEAST_STEPS)]
        while time.perf_counter() - began < MEASURED_S and len(seconds) < MOST_STEPS:
            seconds.append(_timed(step))
    return len(batch["key"]) / min(seconds)


def _timed(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
