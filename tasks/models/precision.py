"""The precision of a model's arithmetic, in training and in evaluation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    """Return the context for bf16 or fp16 on a kind of device; weights stay in fp32, whose context does
    nothing."""
    lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return nullcontext() if lower is None else torch.autocast(device, lower)
