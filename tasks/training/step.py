"""One optimizer step: from a batch to changed weights.

Everything that happens between a batch and the next one is here, so that the loop around it shows what is
done and this module how: micro-batches, loss scaling, clipping, learning rates by part, locked parts, and the
moving average of the weights. All of it is a function of weights, batch and step number, or is part of the
state that a checkpoint keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tasks.core.errors import UsageError
from tasks.core.schema import Train
from tasks.models import adapters
from tasks.models.layers import lock
from tasks.models.recipes import Recipe
from tasks.models.task import Contrastive, Features, Loss, Task
from tasks.training import sharded_weights as shards
from tasks.training.blocks import lay_out_convolutions, prepare_blocks, synchronise_batch_norms
from tasks.training.devices import LOWER, Device, random_state, set_random_state
from tasks.training.meter import Laps, Overflow
from tasks.training.ranks import ALONE, Ranks, Spread
from tasks.training.rates import RateSchedule, apart, parameter_groups


class StepResult(NamedTuple):
    """The result of a step: its mean loss and logs, of shape [] and detached, and its learning rates by part.

    `overflow` is that of fp16, else None.
    """

    loss: Tensor
    logs: Mapping[str, Tensor]
    rates: Mapping[str, float]
    overflow: Overflow | None


class Step:
    """Takes the steps of one training; `task` holds the weights that are trained."""

    def __init__(
        self, recipe: Recipe, model: nn.Module, options: Train, device: Device, ranks: Ranks = ALONE
    ) -> None:
        self.task: Task = recipe.task(model)
        self._options, self._device, self._ranks = options, device, ranks
        self.laps = Laps(device.is_cuda)
        """The time that forward and backward passes and the update of the weights took."""
        if device.is_cuda and device.precision in LOWER and not ranks.shards:
            lay_out_convolutions(model)
        has_copy = options.ema is not None or options.lora is not None
        judged = recipe.task(deepcopy(model)) if has_copy else None
        if options.sync_batch_norm:
            synchronise_batch_norms(model, ranks.count, device.torch)
        if options.lora is not None:
            adapters.add(recipe, model, options)
        self._locked = lock(recipe, model, options)
        trained = {recipe.part_of(name) for name, p in model.named_parameters() if p.requires_grad}
        self._pace_of = {part: RateSchedule.of(options, part) for part in sorted(trained)}
        if not trained:
            key = "freeze" if options.freeze else "lr"
            raise UsageError(f"train.{key}: {', '.join(sorted(options.frozen))} leaves nothing to train")
        prepare_blocks(model, options)
        self._alone = Spread(self.task, ranks)
        """The task without DDP, which goes beside the exchange of gradients."""
        self._judged = self._alone if judged is None else Spread(judged, ranks)
        if ranks.shards:
            for spread in dict.fromkeys((self._alone, self._judged)):
                shards.shard(spread, device.torch)
        groups, self._paces = parameter_groups(recipe, model, options)
        self._names = {p: name for name, p in model.named_parameters() if p.requires_grad}
        self._trained = [parameter for group in groups for parameter in group["params"]]
        if ranks.shards:
            groups, self._paces = apart(groups, self._paces)
        self._optimizer = torch.optim.AdamW(groups, fused=True)
        self._scaler = torch.amp.GradScaler(device.torch.type, enabled=device.precision == "fp16")
        self._spread: nn.Module = self._alone
        if ranks.count > 1 and not ranks.shards:
            # DDP arranges its buckets anew after the first step of a process, by the order in which the
            # gradients were ready, but not where it looks for unused parameters. Where a gradient lies in its
            # bucket decides the order in which more than two ranks add it up, and a resumed training would be
            # rounded differently.
            keeps_buckets = device.is_deterministic and ranks.count > 2
            self._spread = DistributedDataParallel(
                self._spread, find_unused_parameters=keeps_buckets, gradient_as_bucket_view=True
            )
        self._set_training()

    def __call__(self, number: int, *batch: Mapping[str, Any]) -> StepResult:
        """Take step `number`, counted from 0, on a batch that is on the device, whole or in parts.

        Nothing here waits for the device.
        """
        rates = self._set_rates(number)
        self._optimizer.zero_grad()
        self.laps.begin()
        loss, logs = self._backward(batch)
        self._scaler.unscale_(self._optimizer)
        if self._options.grad_clip:
            logs = {**logs, "grad_norm": shards.clip(self._trained, self._options.grad_clip)}
        overflow = self._update()
        self.laps.lap("update")
        self.task.after_step()
        self._follow(number, overflow)
        return StepResult(loss, logs, rates, overflow)

    @property
    def model(self) -> nn.Module:
        """The weights that are validated, saved and evaluated: the average where there is one, and those
        with the adapters merged into them where there are some."""
        self._merge()
        model: nn.Module = self._judged.task.model
        return model

    @contextmanager
    def judging(self) -> Iterator[Callable[[Mapping[str, Any]], Loss]]:
        """Yield the loss of a batch of this rank by those weights, in eval mode and without gradients."""
        self._merge()
        self._judged.eval()
        try:
            with torch.no_grad():
                yield self._judged.judge
        finally:
            shards.drop_gathered(self._judged)
            self._set_training()

    @torch.no_grad()
    def loss_of(self, batch: Mapping[str, Any]) -> float:
        """Return the mean loss of a batch from the loader, by the trained weights in eval mode, for this rank
        alone; not for weights in shards."""
        self.task.eval()
        with self._device.autocast():
            loss = self._alone.judge(self._device.put(batch))
        self._set_training()
        return float(loss.sum / loss.weight)

    def fill(self, source: nn.Module | None) -> None:
        """Give weights in shards their values: those of the first rank's `source`, which others do not
        have."""
        values = None if source is None else shards.state_of(source)
        for spread in dict.fromkeys((self._alone, self._judged)):
            shards.fill(spread.task.model, values)

    def state(self) -> dict[str, Any]:
        """Return what a resume needs beside `model` and `parts`."""
        state: dict[str, Any] = {} if self._ranks.shards else {"optimizer": self._optimizer.state_dict()}
        if self._scaler.is_enabled():
            state["scaler"] = self._scaler.state_dict()
        if self._is_judged_apart and not self._ranks.shards:
            state["weights"] = self.task.model.state_dict()
        return state

    def parts(self) -> dict[str, Tensor] | None:
        """Return what a resume needs of weights in shards beside `model`, by name: this rank's part of the
        optimizer's state, and of the trained weights where their average is the model. None of whole
        weights."""
        return self._named_state() if self._ranks.shards else None

    def _named_state(self) -> dict[str, Tensor]:
        found = {
            f"optimizer.{name}.{key}": value
            for parameter, name in self._names.items()
            for key, value in self._optimizer.state[parameter].items()
        }
        if self._is_judged_apart:
            found |= {f"weights.{name}": value for name, value in shards.state_of(self.task.model).items()}
        return found

    def load(self, state: Mapping[str, Any], folder: Path | None = None) -> None:
        """Restore a state whose `model` is loaded already, with the parts in `folder` if they are not in it.

        A training in shards goes on from a whole state, and a whole one from parts.
        """
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        if "optimizer" not in state:
            assert folder is not None
            self._load_parts(folder)
            return
        if self._ranks.shards:
            self._load_into_shards(state)
            return
        self._optimizer.load_state_dict(state["optimizer"])
        for parameter, values in self._optimizer.state.items():
            for name, value in values.items():
                if value.shape == parameter.shape and value.stride() != parameter.stride():
                    values[name] = torch.empty_like(parameter, requires_grad=False).copy_(value)
        if self._is_judged_apart:
            self.task.model.load_state_dict(state["weights"])

    def _load_into_shards(self, state: Mapping[str, Any]) -> None:
        for number, saved in state["optimizer"]["state"].items():
            mine = self._new_optimizer_state(self._trained[number])
            for key, value in saved.items():
                shards.local(mine[key]).copy_(shards.part_of(value, mine[key]))
        if self._is_judged_apart:
            for name, target in shards.state_of(self.task.model).items():
                if name in state["weights"]:
                    shards.local(target).copy_(shards.part_of(state["weights"][name], target))

    def _load_parts(self, folder: Path) -> None:
        saved = shards.names_in(folder)
        for parameter, name in self._names.items():
            if f"optimizer.{name}.step" in saved:
                self._new_optimizer_state(parameter)
        shards.load({name: value for name, value in self._named_state().items() if name in saved}, folder)

    def _new_optimizer_state(self, parameter: Tensor) -> dict[str, Tensor]:
        """AdamW's state of a parameter, of zeros, put in its place."""
        moments = {key: torch.zeros_like(parameter.detach()) for key in ("exp_avg", "exp_avg_sq")}
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        state: dict[str, Tensor] = {"step": step, **moments}
        self._optimizer.state[parameter] = state
        return state

    @property
    def _is_judged_apart(self) -> bool:
        return self._judged is not self._alone

    def _merge(self) -> None:
        if self._options.lora is not None:
            self._judged.task.model.load_state_dict(adapters.merged(self.task.model))

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
            self.laps.lap("forward")
            self._differentiate(loss)
            self._exchange()
            self.laps.lap("backward")
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
                self.laps.lap("forward")
                self._differentiate(loss.sum / samples)
                self.laps.lap("backward")
            losses.append(loss._replace(sum=loss.sum.detach()))
        self._exchange()
        total, weight = (
            self._ranks.sum(torch.stack(figures).sum())
            for figures in ([loss.sum for loss in losses], [loss.weight for loss in losses])
        )
        for parameter in self._trained:
            if parameter.grad is not None:  # which is the mean over ranks
                parameter.grad.mul_(samples * self._ranks.count / weight)
        self.laps.lap("backward")
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
                features.append(self._alone.encode(part))
        names, sizes = list(features[0]), [len(part["key"]) for part in parts]
        whole = {name: self._ranks.gather(torch.cat([one[name] for one in features])) for name in names}
        gradients = self._gradients(task, whole)
        shares = {name: torch.split(value, sizes) for name, value in gradients.items()}
        self.laps.lap("forward")
        for place, part in enumerate(parts):
            is_last = place == len(parts) - 1
            set_random_state(draws[place])
            given = {name: shares[name][place] for name in names}
            with self._exchanging(is_last):
                with self._device.autocast():
                    product, loss = self._spread(part, given, whole if is_last else None)
                self.laps.lap("forward")
                if loss is not None:
                    mean: Tensor = loss.sum / loss.weight
                    product = product + self._scaler.scale(mean)
                if product.requires_grad:  # which it does not of locked towers
                    product.backward()
                self.laps.lap("backward")
        self._exchange()
        self.laps.lap("backward")
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

    def _exchange(self) -> None:
        """Add up over the ranks what FSDP2 does not."""
        if self._ranks.shards:
            shards.exchange(self._trained, self._ranks)

    def _exchanging(self, is_last: bool) -> AbstractContextManager[Any]:
        """Have the ranks add up their gradients once per step, with the last part; those of weights in shards
        are added up with each, or every rank would hold all of them."""
        if is_last or not isinstance(self._spread, DistributedDataParallel):
            return nullcontext()
        return self._spread.no_sync()

    def _differentiate(self, loss: Tensor) -> None:
        """Add the gradients of a loss, times the loss scale."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _update(self) -> Overflow | None:
        """Change the weights, unless a gradient is not finite, which a smaller loss scale may mend."""
        one = torch.ones((), device=self._device.torch)
        before = self._scaler.scale(one)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if not self._scaler.is_enabled():
            return None
        scale = self._scaler.scale(one)
        return Overflow(scale < before, scale)

    @torch.no_grad()
    def _follow(self, number: int, overflow: Overflow | None) -> None:
        """Move the average towards the weights; early on faster, or it would stay at their first values."""
        if self._options.ema is None:
            return
        share: Any = 1 - min(self._options.ema, (1 + number) / (10 + number))
        if overflow is not None:
            share = torch.where(overflow.is_skipped, 0.0, share)
        average, model = self._judged.task.model, self.task.model
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            shards.local(mine).lerp_(shards.local(theirs), share)
        for mine, theirs in zip(average.buffers(), model.buffers(), strict=True):
            mine.copy_(theirs)


def micro_batches(batch: Mapping[str, Any], size: int | None) -> list[Mapping[str, Any]]:
    """Return the batch in parts of `size` samples, the last of which may be smaller; whole where that is
    None."""
    samples = len(batch["key"])
    if size is None or size >= samples:
        return [batch]
    starts = range(0, samples, size)
    return [{name: value[start : start + size] for name, value in batch.items()} for start in starts]
