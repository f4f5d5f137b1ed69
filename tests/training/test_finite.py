from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tasks.core.errors import DataError
from tasks.training.meter import Outcomes, check_outcomes, check_validation, check_weights


def test_the_first_loss_that_is_not_finite_is_named() -> None:
    check_outcomes(Outcomes({19: 1.0, 20: 2.0}, {}), "fp32")
    with pytest.raises(DataError, match="the loss is inf at step 18"):
        check_outcomes(Outcomes({17: 1.0, 18: math.inf, 19: math.nan}, {}), "fp32")


def test_a_loss_scale_that_cannot_get_smaller_is_no_overflow() -> None:
    check_outcomes(Outcomes({}, {3: 32768.0, 4: 1.0}), "fp16")
    with pytest.raises(
        DataError, match=r"weights are lost after step 5: its gradients.*train\.precision: bf16"
    ):
        check_outcomes(Outcomes({}, {4: 1.0, 5: 0.5}), "fp16")


def test_a_validation_loss_is_called_one() -> None:
    check_validation(1.0, 7, "fp32")
    with pytest.raises(DataError, match="the validation loss is nan at step 7: the weights are finite"):
        check_validation(math.nan, 7, "fp32")


@pytest.mark.parametrize("place", ["weight", "running_mean"])
def test_the_tensor_that_is_not_finite_is_named(place: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    check_weights(model, 7, "fp32")
    with torch.no_grad():
        getattr(model[1], place)[1] = math.nan
    with pytest.raises(DataError, match=rf"after step 7: 1\.{place} is not finite"):
        check_weights(model, 7, "fp32")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_bf16_is_told_to_try_fp32(precision: str) -> None:
    with pytest.raises(DataError, match=r"train\.lr") as caught:
        check_outcomes(Outcomes({1: math.nan}, {}), precision)
    assert ("fp32" in str(caught.value)) == (precision == "bf16")
