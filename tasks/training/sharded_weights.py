"""Weights in shards, by torch's FSDP2: each rank holds a part of every tensor of weights, of its gradient and
of the optimizer's state for it.

A transformer block's weights are gathered when it computes and dropped afterwards, so a rank needs memory for
its share of the model and for one block. The model is built on one rank alone, on the others without memory
(on torch's device `meta`), and every rank takes its part of each tensor as it is sent.

Values of one number, such as the temperature of a contrast, are whole on every rank: FSDP2 shards none, and a
loss needs them outside the model's forward pass. Their gradients are added up here.

torch's modules for shards take a second to import, and are imported where there are any.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, distributed, nn
from torch.nn.utils import get_total_norm

from tasks.core.errors import first_line
from tasks.models.layers import blocks_of
from tasks.models.recipes import Recipe
from tasks.training.ranks import Ranks, Spread

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


def is_shard(value: Tensor) -> TypeGuard[DTensor]:
    """Return whether this rank holds a part of the tensor only."""
    module = sys.modules.get("torch.distributed.tensor")  # without which there is none
    return module is not None and isinstance(value, module.DTensor)


def build_without_memory(recipe: Recipe) -> nn.Module:
    """Build the recipe's model without memory for its weights, and without drawing a random number."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return recipe.build_model(pretrained=False)


def shard(spread: Spread, device: torch.device) -> None:
    """Leave to this rank its part of the weights, on the device; those of a model that was built without
    memory are to be filled."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = mesh_of(device.type, spread.ranks.count)
    whole = {value for value in spread.parameters() if value.numel() == 1}
    for block in blocks_of(spread.task.model):
        fully_shard(block, mesh=mesh, ignored_params=whole)
    fully_shard(spread, mesh=mesh, ignored_params=whole)
    for method in ("encode", "judge"):
        register_fsdp_forward_method(spread, method)
    if any(value.is_meta for value in spread.parameters()):
        spread.to_empty(device=device)


@cache
def mesh_of(device_type: str, count: int) -> DeviceMesh:
    """Return the ranks as torch's shards know them; the process group has to be there."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device_type, (count,))


def drop_gathered(spread: Spread) -> None:
    """Forget the weights that were gathered for a forward pass without a backward pass."""
    reshard = getattr(spread, "reshard", None)  # of a module that was sharded
    if reshard is not None:
        reshard()


def fill(model: nn.Module, source: Mapping[str, Tensor] | None) -> None:
    """Give a sharded model the first rank's weights and buffers by name; the others pass None."""
    for name, target in _tensors_of(model):
        value = torch.empty(target.shape, dtype=target.dtype, device=target.device)
        if source is not None:
            value.copy_(source[name])
        distributed.broadcast(value, src=0)
        local(target).copy_(part_of(value, target))


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """Return this rank's part of a whole tensor, as it has one of `like`."""
    if not is_shard(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    spread = distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    mine: Tensor = spread.to_local()
    return mine


def local(value: Tensor) -> Tensor:
    """Return the part of a tensor that this rank holds, without a copy."""
    if not is_shard(value):
        return value
    mine: Tensor = value.to_local()
    return mine


def gather(model: nn.Module, ranks: Ranks) -> dict[str, Tensor]:
    """Return the model's whole state dict on the first rank, in the host's memory; empty on the others.

    Names of one tensor share its memory, as they do in the model.
    """
    found: dict[str, Tensor] = {}
    known: dict[int, Tensor] = {}
    for name, value in model.state_dict().items():
        place = local(value).data_ptr() or id(value)
        if place not in known:
            whole = value.detach()
            whole = whole.full_tensor() if is_shard(whole) else whole
            known[place] = whole.to("cpu", copy=True) if ranks.is_first else whole.new_empty(0)
        found[name] = known[place]
    return found if ranks.is_first else {}


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return what `fill` sends: the weights and buffers by name, also those that no checkpoint has."""
    return dict(_tensors_of(model))


@torch.no_grad()
def exchange(parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Set the gradients of what is whole on every rank to their mean over the ranks."""
    for parameter in parameters:
        if parameter.grad is not None and not is_shard(parameter):
            parameter.grad.copy_(ranks.sum(parameter.grad) / ranks.count)


@torch.no_grad()
def clip(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Scale the gradients so that their norm, over all ranks, is at most `most`; return what it was, of shape
    []."""
    given = [parameter.grad for parameter in parameters if parameter.grad is not None]
    kinds = [[one for one in given if is_shard(one) == wanted] for wanted in (True, False)]
    norms = [get_total_norm(kind) for kind in kinds if kind]
    norm: Tensor = torch.stack([one.full_tensor() if is_shard(one) else one for one in norms]).norm()
    share = torch.clamp(most / (norm + 1e-6), max=1.0)
    for gradient in given:
        local(gradient).mul_(share)
    return norm


def save(values: dict[str, Tensor], folder: Path, group: distributed.ProcessGroup) -> Future[Any]:
    """Copy every rank's part of the tensors to its host, and begin to write them into the folder.

    `await_saved` raises where a rank could not. All ranks of `group` have to call this, and use the group for
    nothing else meanwhile.
    """
    from torch.distributed.checkpoint import state_dict_saver

    begun: Any = state_dict_saver.async_save(values, checkpoint_id=folder, process_group=group)
    future: Future[Any] = begun
    return future


def await_saved(saved: Future[Any]) -> None:
    """Wait for the end of a `save`; OSError with what a rank met that could not."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        saved.result()
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise OSError(f"rank {rank}: {first_line(cause)}") from error


def load(values: dict[str, Tensor], folder: Path) -> None:
    """Read into tensors, whole or in parts, what any number of ranks has saved."""
    from torch.distributed.checkpoint import state_dict_loader

    state_dict_loader.load(values, checkpoint_id=folder)


def names_in(folder: Path) -> frozenset[str]:
    """Return the names of the tensors in the folder."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return frozenset(FileSystemReader(folder).read_metadata().state_dict_metadata)


def _tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield each parameter and buffer once, detached."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        yield name, value.detach()
