"""The learning rate: linear warm-up, then half a cosine down to zero.

Pure and without state, so a resumed run needs nothing but its step. Source: open_clip_train/scheduler.py.
"""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, warmup: int, steps: int) -> float:
    """The rate of the optimizer step `step`, counted from 0, out of `steps`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
