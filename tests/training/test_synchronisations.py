"""How often a step makes the host wait for a GPU: never.

Without a GPU it shows in the operations that a step dispatches. Those whose result the host has to see, or whose
shape depends on values, wait on CUDA.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tasks.models import recipes
from tasks.training.devices import Device
from tasks.training.step import Step
from tests.models.examples import TRAINED, batch_of, train_block

WAITING = {
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "unique_dim",
    "unique_consecutive", "masked_scatter_backward", "repeat_interleave.Tensor", "bincount", "histc",
}  # fmt: skip
"""`item`, `tolist`, `bool(tensor)` and `float(tensor)` dispatch the first."""


class Audit(TorchDispatchMode):
    """Collects the operations that would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        name = str(function).partition(".")[2]
        base = name.partition(".")[0]
        indices = arguments[1] if base in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
        by_mask = any(isinstance(one, Tensor) and one.dtype == torch.bool for one in indices or ())
        if base in WAITING or name in WAITING or by_mask:
            self.found.append(name)
        return function(*arguments, **(keywords or {}))


def waits_of(name: str, **keys: Any) -> list[str]:
    train = train_block(name, keys)
    recipe = recipes.load_recipe(train)
    step = Step(recipe, recipe.build_model(), train, Device(torch.device("cpu"), train.precision))
    batch = batch_of(recipe, name, is_train=True)
    step(0, batch)
    with Audit() as audit:
        step(1, batch)
    return audit.found


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("name", TRAINED)
def test_a_step_waits_for_nothing(name: str, micro_batch: int | None, precision: str) -> None:
    assert waits_of(name, micro_batch=micro_batch, precision=precision, grad_clip=1.0, ema=0.9) == []


def test_the_audit_finds_what_waits() -> None:
    flags = torch.tensor([True, False])
    with Audit() as audit:
        float(flags.sum())
        flags.nonzero()
        torch.ones(2)[flags]
        bool(flags.any())
    assert len(audit.found) >= 4
