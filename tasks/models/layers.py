"""The layers of a model's parts, from the embeddings up: what is locked, and how fast each layer is trained.

A model states neither its layers nor their order. The blocks of its transformers are found by their shape, as
modules that stand in a list of modules of their class, and what lies below them by the names that open_clip,
timm and transformers give to embeddings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tasks.core.errors import UsageError
from tasks.core.schema import Train
from tasks.models.recipes import Recipe

BELOW = re.compile(r"emb|conv1\b|stem|ln_pre|norm_pre|(cls|reg|mask)_token|\bpos_|_pos_|places|words")
"""Matches the names of parameters outside of blocks that the first block reads from."""
NORM = re.compile(r"(^|[._])(ln|norm|layernorm)")
"""Matches those of a norm; open_clip groups it with the last block."""


@dataclass(frozen=True)
class LayerPosition:
    """Where a parameter lies in its part: `above` counts the layers above its own, of which the uppermost
    holds what lies above the blocks, and None stands for a part without blocks."""

    part: str
    above: int | None
    is_norm: bool = False
    """Whether it is a norm outside of the blocks."""


def blocks_of(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that stand in a list of modules of their class."""
    for part in model.children():
        listed = list(part.children()) if isinstance(part, nn.ModuleList | nn.Sequential) else []
        is_list = isinstance(part, nn.ModuleList) or len(listed) > 1
        if is_list and len({type(one) for one in listed}) == 1 and _computes(listed[0]):
            yield from (one for one in listed if not has_batch_norm(one))
        else:
            yield from blocks_of(part)


def blocks_by_part(recipe: Recipe, model: nn.Module) -> dict[str, list[tuple[str, nn.Module]]]:
    """Return the blocks with their names by part, from the lowest up; parts without blocks are left out."""
    names = {module: name for name, module in model.named_modules()}
    found: dict[str, list[tuple[str, nn.Module]]] = {}
    for block in blocks_of(model):
        found.setdefault(recipe.part_of(names[block]), []).append((names[block], block))
    return found


def positions_of(recipe: Recipe, model: nn.Module) -> dict[str, LayerPosition]:
    """Return the position of each parameter of the model by its name."""
    blocks = blocks_by_part(recipe, model)
    found = {}
    for name, _ in model.named_parameters():
        part = recipe.part_of(name)
        mine = [block for block, _ in blocks.get(part, ())]
        inside = next((place for place, block in enumerate(mine) if name.startswith(f"{block}.")), None)
        if not mine:
            found[name] = LayerPosition(part, None)
        elif inside is not None:
            found[name] = LayerPosition(part, len(mine) - inside)
        elif BELOW.search(name):
            found[name] = LayerPosition(part, len(mine) + 1)
        else:
            found[name] = LayerPosition(part, 0, NORM.search(name) is not None)
    return found


def rate_shares(recipe: Recipe, model: nn.Module, decay: float | None) -> dict[str, float]:
    """Return the share of its part's learning rate that each parameter has, by name.

    Source: BEiT's optim_factory.py, where the norm above the blocks counts as above them. UsageError for a
    model without blocks.
    """
    if decay is None:
        return {name: 1.0 for name, _ in model.named_parameters()}
    positions = positions_of(recipe, model)
    if all(one.above is None for one in positions.values()):
        raise UsageError(
            "train.layer_decay: has no effect on this model, which has no transformer; take it out"
        )
    return {name: decay ** (one.above or 0) for name, one in positions.items()}


def lock(recipe: Recipe, model: nn.Module, train: Train) -> list[nn.Module]:
    """Have no gradients computed for what `train.freeze` and `train.unlocked` lock; return the modules all of
    whose parameters that locks.

    Source of the groups: `lock` and `lock_text_tower` in open_clip/transformer.py. UsageError for a part
    without blocks.
    """
    below = _below(recipe, model, train.unlocked)
    for name, parameter in model.named_parameters():
        is_locked = recipe.part_of(name) in train.frozen or name in below
        parameter.requires_grad_(parameter.requires_grad and not is_locked)
    trained = {recipe.part_of(name) for name, one in model.named_parameters() if one.requires_grad}
    for part in train.unlocked:
        if part not in trained:
            raise UsageError(
                f"train.unlocked.{part}: {train.unlocked[part]} leaves nothing to train, as the adapters of "
                "train.lora lie in the blocks; unlock one group more"
            )
    locked = []
    for name, module in model.named_modules():
        held = [f"{name}.{one}" for one, _ in module.named_parameters()]
        is_frozen = bool(name) and recipe.part_of(name) in train.frozen
        if is_frozen or (held and below.issuperset(held)):
            locked.append(module)
    return locked


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(part, _BatchNorm) for part in model.modules())


def _below(recipe: Recipe, model: nn.Module, unlocked: Mapping[str, int]) -> set[str]:
    """The names of the parameters below the uppermost groups that are unlocked."""
    if not unlocked:
        return set()
    groups: dict[str, dict[str, int]] = {}
    for name, position in positions_of(recipe, model).items():
        if position.above is not None:
            groups.setdefault(position.part, {})[name] = max(position.above, int(position.is_norm))
    for part in unlocked:
        if part not in groups:
            raise UsageError(
                f"train.unlocked.{part}: this part of the model has no transformer, so no groups of layers; "
                "take it out, or lock the whole part by train.freeze"
            )
    tops = {part: min(mine.values()) + unlocked[part] for part, mine in groups.items() if part in unlocked}
    return {name for part, top in tops.items() for name, group in groups[part].items() if group >= top}


def _computes(part: nn.Module) -> bool:
    """Whether it is a module of several with a computation of its own, and neither a list nor a leaf."""
    return type(part) is not nn.ModuleList and any(True for _ in part.children())
