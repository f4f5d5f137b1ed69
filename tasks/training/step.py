"""One optimizer step: from a batch to changed weights.

Everything that happens between a batch and the next one is here, so that the loop around it shows what is
done and this module how: micro-batches, loss scaling, clipping, learning rates by part, locked parts, and the
moving average of the weights. All of it is a function of weights, batch and step number, or is part of the
state that a checkpoint keeps.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from tasks.core.errors import UsageError
from tasks.core.schema import Train
from tasks.models.recipes import Recipe
from tasks.models.task import Contrastive, Features, Loss, Task
from tasks.training.blocks import prepare_blocks
from tasks.training.devices import Device, random_state, set_random_state
from tasks.training.meter import check_scale
from tasks.training.ranks import ALONE, Ranks, Spread


class StepResult(NamedTuple):
    """The result of a step: its mean loss and logs, of shape [] and detached, and its learning rates by part.

    `scale` is None, except for a step that was skipped because its gradients were not finite: the new loss
    scale.
    """

    loss: Tensor
    logs: Mapping[str, Tensor]
    rates: Mapping[str, float]
    scale: float | None


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
    def of(cls, options: Train, part: str) -> RateSchedule:
        assert options.steps is not None
        return cls(
            options.peak(part),
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


class Step:
    """Takes the steps of one training; `task` holds the weights that are trained."""

    def __init__(
        self, recipe: Recipe, model: nn.Module, options: Train, device: Device, ranks: Ranks = ALONE
    ) -> None:
        self.task: Task = recipe.task(model)
        self._options, self._device, self._part_of, self._ranks = options, device, recipe.part_of, ranks
        self._locked = [module for name, module in model.named_modules() if self._is_frozen(name)]
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and not self._is_frozen(name))
        groups, self._paces = parameter_groups(recipe, model, options)
        trained = {recipe.part_of(name) for name, p in model.named_parameters() if p.requires_grad}
        self._pace_of = {part: RateSchedule.of(options, part) for part in sorted(trained)}
        if not groups:
            key = "freeze" if options.freeze else "lr"
            raise UsageError(f"train.{key}: {', '.join(sorted(options.frozen))} leaves nothing to train")
        self._trained = [parameter for group in groups for parameter in group["params"]]
        self._optimizer = torch.optim.AdamW(groups, fused=True)
        self._scaler = torch.amp.GradScaler(device.torch.type, enabled=device.precision == "fp16")
        self._spread: nn.Module = Spread(self.task, ranks)
        if ranks.count > 1:
            # DDP arranges its buckets anew after the first step of a process, by the order in which the
            # gradients were ready, but not where it looks for unused parameters. Where a gradient lies in its
            # bucket decides the order in which more than two ranks add it up, and a resumed training would be
            # rounded differently.
            keeps_buckets = device.is_deterministic and ranks.count > 2
            self._spread = DistributedDataParallel(
                self._spread, find_unused_parameters=keeps_buckets, gradient_as_bucket_view=True
            )
        self._judged = self.task if options.ema is None else recipe.task(copy.deepcopy(model))
        prepare_blocks(model, options)
        self._set_training()

    def __call__(self, number: int, *batch: Mapping[str, Any]) -> StepResult:
        """Take step `number`, counted from 0, on a batch that is on the device, whole or in parts.

        DataError when the loss scale has become so small that it is no overflow any more.
        """
        rates = self._set_rates(number)
        self._optimizer.zero_grad()
        loss, logs = self._backward(batch)
        self._scaler.unscale_(self._optimizer)
        if self._options.grad_clip:
            logs = {**logs, "grad_norm": clip_grad_norm_(self._trained, self._options.grad_clip).detach()}
        if self._is_skipped():
            scale = self._scaler.get_scale()
            check_scale(scale, number + 1, float(loss))
            return StepResult(loss, logs, rates, scale)
        self.task.after_step()
        self._follow(number)
        return StepResult(loss, logs, rates, None)

    @property
    def model(self) -> nn.Module:
        """The weights that are validated, saved and evaluated: the average, where there is one."""
        model: nn.Module = self._judged.model
        return model

    @contextmanager
    def judging(self) -> Iterator[Task]:
        """Yield the task with those weights, in eval mode and without gradients."""
        self._judged.eval()
        try:
            with torch.no_grad():
                yield self._judged
        finally:
            self._set_training()

    @torch.no_grad()
    def loss_of(self, batch: Mapping[str, Any]) -> float:
        """Return the mean loss of a batch from the loader, by the trained weights in eval mode, for this rank
        alone."""
        self.task.eval()
        with self._device.autocast():
            loss: Loss = self.task(self._device.put(batch))
        self._set_training()
        return float(loss.sum / loss.weight)

    def state(self) -> dict[str, Any]:
        """Return what a resume needs beside `model`."""
        state: dict[str, Any] = {"optimizer": self._optimizer.state_dict()}
        if self._scaler.is_enabled():
            state["scaler"] = self._scaler.state_dict()
        if self._judged is not self.task:
            state["weights"] = self.task.model.state_dict()
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a state whose `model` is loaded already."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        if self._judged is not self.task:
            self.task.model.load_state_dict(state["weights"])

    def _is_frozen(self, name: str) -> bool:
        return bool(name) and self._part_of(name) in self._options.frozen

    def _set_training(self) -> None:
        """Set training mode; locked parts stay in eval mode, in which neither dropout nor the batch changes
        their output."""
        self.task.train()
        for module in self._locked:
            module.training = False

    def _set_rates(self, number: int) -> dict[str, float]:
        for group, pace in zip(self._optimizer.param_groups, self._paces, strict=True):
            group["lr"] = pace.rate(number)
        return {part: pace.rate(number) for part, pace in self._pace_of.items()}

    def _backward(self, batch: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Compute the gradients of the batch's mean loss over all ranks; return that loss and its logs."""
        size = self._options.micro_batch
        parts = [part for given in batch for part in micro_batches(given, size)]
        if isinstance(self.task, Contrastive) and len(parts) > 1:
            return self._contrasted(self.task, parts)
        if isinstance(self.task, Contrastive) or (len(parts) == 1 and self._ranks.count == 1):
            with self._device.autocast():
                total, weight, logs = self._spread(parts[0])
            loss: Tensor = total / weight
            self._differentiate(loss)
            return self._of_all_ranks(loss, logs)
        return self._summed(parts)

    def _summed(self, parts: Sequence[Mapping[str, Any]]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Add up the parts; their total weight is known only at the end, so the gradients are divided by it
        then."""
        samples = sum(len(part["key"]) for part in parts)
        losses = []
        for part in parts:
            with self._exchanging(part is parts[-1]):
                with self._device.autocast():
                    loss: Loss = self._spread(part)
                self._differentiate(loss.sum / samples)
            losses.append(loss._replace(sum=loss.sum.detach()))
        total, weight = (
            self._ranks.sum(torch.stack(figures).sum())
            for figures in ([loss.sum for loss in losses], [loss.weight for loss in losses])
        )
        for parameter in self._trained:
            if parameter.grad is not None:  # which is the mean over ranks
                parameter.grad.mul_(samples * self._ranks.count / weight)
        names = losses[0].logs
        logs = {name: torch.stack([loss.logs[name] for loss in losses]).float().mean() for name in names}
        return total / weight, logs

    def _contrasted(
        self, task: Contrastive, parts: Sequence[Mapping[str, Any]]
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Encode the parts without gradients, contrast all features at once, and encode each part again with
        the gradient that the contrast gave its features.

        Source: L. Gao et al., "Scaling deep contrastive learning batch size under memory limited setup"
        (2021). The gradients equal those of the whole batch, where open_clip's --accum-freq counts the
        temperature's once per part: the contrast's own parameters get theirs with the last part. Each part
        draws the same random numbers both times. Batch norm works on a part.
        """
        features, draws = [], []
        for part in parts:
            draws.append(random_state())
            with torch.no_grad(), self._device.autocast():
                features.append(task.encode(part))
        names, sizes = list(features[0]), [len(part["key"]) for part in parts]
        whole = {name: self._ranks.gather(torch.cat([one[name] for one in features])) for name in names}
        gradients = self._gradients(task, whole)
        shares = {name: torch.split(value, sizes) for name, value in gradients.items()}
        for place, part in enumerate(parts):
            is_last = place == len(parts) - 1
            set_random_state(draws[place])
            given = {name: shares[name][place] for name in names}
            with self._exchanging(is_last):
                with self._device.autocast():
                    product, loss = self._spread(part, given, whole if is_last else None)
                if loss is not None:
                    mean: Tensor = loss.sum / loss.weight
                    product = product + self._scaler.scale(mean)
                if product.requires_grad:  # which it does not of locked towers
                    product.backward()
        assert loss is not None
        return self._of_all_ranks(mean, loss.logs)

    def _gradients(self, task: Contrastive, features: Features) -> dict[str, Tensor]:
        """The gradients of the mean loss over all ranks for this rank's features, times the loss scale; the
        weights get none."""
        leaves = {name: value.detach().requires_grad_() for name, value in features.items()}
        with self._device.autocast():
            total, weight, _ = task.contrast(leaves, self._ranks.own(len(next(iter(leaves.values())))))
        scaled = self._scaler.scale(total / weight / self._ranks.count)
        found = torch.autograd.grad(scaled, list(leaves.values()), materialize_grads=True)
        return {name: self._ranks.own_of_sum(value) for name, value in zip(leaves, found, strict=True)}

    def _of_all_ranks(self, loss: Tensor, logs: Mapping[str, Tensor]) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The means over ranks of the loss and its logs, whose samples are equally many on each."""
        means = self._ranks.means({"": loss, **logs})
        return means.pop(""), means

    def _exchanging(self, is_last: bool) -> AbstractContextManager[Any]:
        """Have the ranks add up their gradients once per step, with the last part."""
        if is_last or not isinstance(self._spread, DistributedDataParallel):
            return nullcontext()
        return self._spread.no_sync()

    def _differentiate(self, loss: Tensor) -> None:
        """Add the gradients of a loss, times the loss scale."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _is_skipped(self) -> bool:
        """Change the weights; whether that was skipped because a gradient is not finite, which a smaller loss
        scale may mend."""
        before = self._scaler.get_scale()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return self._scaler.get_scale() < before

    @torch.no_grad()
    def _follow(self, number: int) -> None:
        """Move the average towards the weights; early on faster, or it would stay at their first values."""
        if self._options.ema is None:
            return
        decay = min(self._options.ema, (1 + number) / (10 + number))
        average, model = self._judged.model, self.task.model
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 1 - decay)
        for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)


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
    for is_decayed in (True, False):
        for name, parameter in trained:
            if (options.decay == "all" or recipe.is_decayed(name, parameter)) != is_decayed:
                continue
            pace = RateSchedule.of(options, recipe.part_of(name))
            if (is_decayed, pace) not in groups:
                decay = options.weight_decay if is_decayed else 0.0
                own = {"weight_decay": decay, "betas": options.betas, "eps": options.eps}
                groups[is_decayed, pace] = {"params": [], **own}
                paces.append(pace)
            groups[is_decayed, pace]["params"].append(parameter)
    return list(groups.values()), paces


def micro_batches(batch: Mapping[str, Any], size: int | None) -> list[Mapping[str, Any]]:
    """Return the batch in parts of `size` samples, the last of which may be smaller; whole where that is
    None."""
    samples = len(batch["key"])
    if size is None or size >= samples:
        return [batch]
    starts = range(0, samples, size)
    return [{name: value[start : start + size] for name, value in batch.items()} for start in starts]
