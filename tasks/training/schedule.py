"""The learning rate: linear warm-up, then half a cosine down to zero, or constant with a linear cooldown.

Pure and without state, so a resumed run needs nothing but its step. Source: open_clip_train/scheduler.py.
"""

from __future__ import annotations

import math
from typing import Literal


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup: int,
    steps: int,
    schedule: Literal["cosine", "constant"] = "cosine",
    cooldown: int = 0,
) -> float:
    """The rate of the optimizer step `step`, counted from 0, out of `steps`; the last `cooldown` of them
    fall in a line where it is constant."""
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak * min(1, (steps - step) / max(cooldown, 1))
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
