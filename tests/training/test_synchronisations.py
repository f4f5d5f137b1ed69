"""How often a step makes the host wait for a GPU: never.

Without a GPU it shows in the operations that a step dispatches. Those whose result the host has to see, or whose
shape depends on values, wait on CUDA. So does a copy from memory that is not pinned: that shows on tensors of a GPU
that hold nothing, as far as the backward pass, which torch does not begin without a driver.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from tasks.models import recipes
from tasks.training import fake_step
from tasks.training import sharded_weights as shards
from tasks.training import step as steps
from tasks.training.devices import Device
from tasks.training.meter import Laps
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


class Crossings(TorchDispatchMode):
    """Collects the operations that take tensors from the host to a GPU or back."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        output = function(*arguments, **(keywords or {}))
        met = tree_iter((arguments, keywords, output))
        if len({value.device.type for value in met if isinstance(value, Tensor)}) > 1:
            self.found.append(str(function))
        return output


def crossings_of(name: str, **keys: Any) -> list[str]:
    train = train_block(name, keys)
    recipe, device = recipes.load_recipe(train), Device(torch.device("cuda"), "fp32")
    batch = batch_of(recipe, name, is_train=True)

    def pretend(step: Step) -> None:
        for parameter in step._trained:
            parameter.grad = torch.empty_like(parameter)

    with (
        patch.object(fake_step, "CPU", device.torch),
        patch.object(nn.Module, "to", lambda module, *_, **__: module),
        patch.object(steps, "Laps", lambda _: Laps(False)),
        patch.object(steps, "deepcopy", lambda _: fake_step._allocated(shards.build_without_memory(recipe))),
        patch.object(Tensor, "backward", lambda _: None),
        patch.object(
            torch.autograd, "grad", lambda _, leaves, **__: [torch.empty_like(one) for one in leaves]
        ),
        patch.object(Step, "_exchange", pretend),
        FakeTensorMode(allow_non_fake_inputs=True) as fake,
    ):
        step = Step(recipe, fake_step._allocated(shards.build_without_memory(recipe)), train, device)
        given = {
            key: fake.from_tensor(value).to(device.torch) if isinstance(value, Tensor) else value
            for key, value in batch.items()
        }
        step(0, given)
        with Crossings() as crossings:
            step(1, given)
    return crossings.found


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("name", TRAINED)
def test_a_step_takes_nothing_to_the_gpu_and_back(name: str, micro_batch: int | None) -> None:
    assert crossings_of(name, micro_batch=micro_batch, grad_clip=1.0, ema=0.9) == []
