"""Low-rank adapters in the blocks of a model's transformers, by the library peft.

peft merges the adapters of a fused projection of attention into its weights and takes them out again in each
pass, which rounds the weights a little more every time; as a target parameter, the projection is left as it
is and the sum is computed anew. So that is how they are adapted here, and the projection behind
attention, whose layer torch does not call, is not.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from tasks.core.errors import UsageError, instead
from tasks.core.schema import Train
from tasks.core.schema.training import Lora
from tasks.models.layers import blocks_by_part
from tasks.models.recipes import Recipe

ADAPTER = "default"
FUSED = "in_proj_weight"
"""The projection to queries, keys and values of torch's attention, a parameter without a layer."""


def add(recipe: Recipe, model: nn.Module, train: Train) -> None:
    """Put adapters, which change nothing yet, into the blocks of the parts that are trained, and freeze all
    else in these parts.

    Their values come from torch's global generator. UsageError without peft, for a model whose trained parts
    have no blocks, and for targets that no block has.
    """
    assert train.lora is not None
    blocks = {
        part: found for part, found in blocks_by_part(recipe, model).items() if part not in train.frozen
    }
    if not blocks:
        raise UsageError(
            "train.lora: has no effect on this model, no trained part of which has a transformer"
        )
    library = _peft()
    for part, found in blocks.items():
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and recipe.part_of(name) != part)
        for _, block in found:
            _adapt(library, block, train.lora)


def merged(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of the model as it was before it had adapters, with these merged into it."""
    layer: Any = sys.modules["peft"].tuners.lora.LoraLayer
    state = {
        name.replace(".base_layer", ""): value
        for name, value in model.state_dict().items()
        if ".lora_A." not in name and ".lora_B." not in name
    }
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, layer):
                weight = f"{name.replace('.base_layer', '')}.{getattr(module, 'parameter_name', 'weight')}"
                state[weight] = state[weight] + module.get_delta_weight(ADAPTER)
    return state


def _adapt(library: Any, block: nn.Module, lora: Lora) -> None:
    """Put adapters into one block; the names that peft gets are unambiguous within it."""
    layers, fused = _targets(block)
    if lora.targets is not None:
        known = [*layers, *fused]
        for target in lora.targets:
            if not any(_ends(name, target) for name in known):
                raise UsageError(f"train.lora.targets: no block has {target!r}; {instead(target, known)}")
        layers, fused = ([n for n in names if _is_meant(n, lora.targets)] for names in (layers, fused))
    config = library.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.rank if lora.alpha is None else lora.alpha,
        target_modules=layers,
        target_parameters=[f"{name}.{FUSED}" for name in fused],
    )
    library.inject_adapter_in_model(config, block, ADAPTER)


def _targets(block: nn.Module) -> tuple[list[str], list[str]]:
    """The names of linear layers, and those of attentions with a fused projection."""
    modules: Mapping[str, nn.Module] = dict(block.named_modules())
    fused = [
        name
        for name, one in modules.items()
        if isinstance(one, nn.MultiheadAttention) and one.in_proj_weight is not None
    ]
    inside = {f"{name}.out_proj" for name in fused}
    linear = [name for name, one in modules.items() if isinstance(one, nn.Linear) and name not in inside]
    return linear, fused


def _is_meant(name: str, targets: list[str]) -> bool:
    return any(_ends(name, target) for target in targets)


def _ends(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _peft() -> Any:
    """Import peft as if wandb were not installed, which it would import; a training loads no tracker."""
    if find_spec("peft") is None:
        raise UsageError("train.lora: needs peft, which is not installed: pip install 'tarmac[lora]'")
    modules: dict[str, Any] = sys.modules
    if "wandb" in modules:
        return importlib.import_module("peft")
    modules["wandb"] = None  # importing a module that is None raises ImportError
    try:
        return importlib.import_module("peft")
    finally:
        del modules["wandb"]
