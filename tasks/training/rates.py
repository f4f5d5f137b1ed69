"""Which parameters learn at what rate: the schedule of each part, and the groups for the optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from tasks.core.schema import Train
from tasks.models.layers import rate_shares
from tasks.models.recipes import Recipe
from tasks.training import sharded_weights as shards


@dataclass(frozen=True)
class RateSchedule:
    """The learning rate of a group of parameters.

    It warms up in a line over `warmup` steps, then follows half a cosine down to `floor`, a share of the
    peak, after `steps`, or stays constant until it falls over the last `cooldown` steps, with `power` of the
    share of them that is left. It has no state, so a resumed run needs nothing but its step. Sources:
    open_clip_train/scheduler.py; for the floor of a cosine nanoVLM's train.py.
    """

    peak: float
    warmup: int
    steps: int
    schedule: Literal["cosine", "constant"] = "cosine"
    floor: float = 0.0
    cooldown: int = 0
    power: float = 1.0

    @classmethod
    def of(cls, options: Train, part: str, share: float = 1.0) -> RateSchedule:
        """Return the schedule of a part's parameters whose rate is this share of the part's."""
        assert options.steps is not None
        return cls(
            share * options.peak(part),
            options.warmup_steps_of(part),
            options.steps,
            options.schedule,
            options.lr_floor,
            options.cooldown_steps,
            options.cooldown_power,
        )

    def rate(self, step: int) -> float:
        """Return the rate of the optimizer step `step`, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.schedule == "constant":
            height = min(1, (self.steps - step) / max(self.cooldown, 1)) ** self.power
        else:
            height = 0.5 * (1 + math.cos(math.pi * (step - self.warmup) / (self.steps - self.warmup)))
        return float(self.peak * (self.floor + (1 - self.floor) * height))


def parameter_groups(
    recipe: Recipe, model: nn.Module, options: Train
) -> tuple[list[dict[str, Any]], list[RateSchedule]]:
    """Return groups for AdamW, and the pace of each.

    Parts of one pace share their groups, so a training without parts has two: parameters that decay, and the
    others.
    """
    groups: dict[tuple[bool, RateSchedule], dict[str, Any]] = {}
    paces: list[RateSchedule] = []
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    shares = rate_shares(recipe, model, options.layer_decay)
    for is_decayed in (True, False):
        for name, parameter in trained:
            if (options.decay == "all" or recipe.is_decayed(name, parameter)) != is_decayed:
                continue
            pace = RateSchedule.of(options, recipe.part_of(name), shares[name])
            if (is_decayed, pace) not in groups:
                decay = options.weight_decay if is_decayed else 0.0
                own = {"weight_decay": decay, "betas": options.betas, "eps": options.eps}
                groups[is_decayed, pace] = {"params": [], **own}
                paces.append(pace)
            groups[is_decayed, pace]["params"].append(parameter)
    return list(groups.values()), paces


def apart(
    groups: Sequence[Mapping[str, Any]], paces: Sequence[RateSchedule]
) -> tuple[list[dict[str, Any]], list[RateSchedule]]:
    """Return the groups with what is in shards and what is whole in groups of their own, as an optimizer that
    is fused needs it; and the pace of each."""
    found = []
    for group, pace in zip(groups, paces, strict=True):
        for wanted in (True, False):
            some = [one for one in group["params"] if shards.is_shard(one) == wanted]
            found += [({**group, "params": some}, pace)] if some else []
    return [group for group, _ in found], [pace for _, pace in found]
