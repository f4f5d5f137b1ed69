"""What ends a training because it is not finite: a loss, a weight, a validation loss.

One such number is in all weights a step later, so nothing is trained or saved beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from tasks.core.errors import DataError

LEAST_SCALE = 1.0
"""Of fp16's losses, which begin at 65,536 times theirs and are halved at every overflow."""
WIDER = {"bf16": "fp32", "fp16": "bf16"}


def check_losses(losses: Sequence[float], last_step: int, precision: str) -> None:
    """DataError naming the first of the steps up to `last_step` whose loss is not finite."""
    for place, loss in enumerate(losses):
        if not math.isfinite(loss):
            step = last_step - len(losses) + 1 + place
            raise DataError(
                f"the loss is {loss} at step {step}, so the weights are lost; {_remedy(precision)}"
            )


def check_weights(model: nn.Module, step: int, precision: str) -> None:
    """DataError naming the first parameter or buffer that is not finite after `step`."""
    for name, tensor in model.state_dict().items():
        if not tensor.isfinite().all():
            raise DataError(
                f"the weights are lost after step {step}: {name} is not finite; they are not saved; "
                f"{_remedy(precision)}"
            )


def check_validation(loss: float, step: int, precision: str) -> None:
    """DataError when the loss on held-out samples is not finite; the weights are, or they were not saved."""
    if not math.isfinite(loss):
        raise DataError(
            f"the validation loss is {loss} at step {step}: the weights are finite, and what they make of "
            f"the held-out samples is not; {_remedy(precision)}"
        )


def check_scale(scale: float, step: int, loss: float) -> None:
    """DataError when no loss scale is small enough any more: then it is no overflow of fp16."""
    if scale < LEAST_SCALE:
        raise DataError(
            f"the weights are lost after step {step}: its gradients are not finite even at a loss scale of "
            f"{scale:g}, and its loss is {loss}; {_remedy('fp16')}"
        )


def _remedy(precision: str) -> str:
    remedy = "lower train.lr or lengthen train.warmup"
    return remedy if precision == "fp32" else f"{remedy}, or try train.precision: {WIDER[precision]}"
