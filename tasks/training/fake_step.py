"""Takes a step of a training on tensors that hold nothing, and counts what they would hold.

Under torch's FakeTensorMode the training's own code runs, its model, loss, optimizer and shards, at the sizes
of the config; each storage that an operation makes is counted until it is dropped. Exchanges between ranks go
to a process group that does nothing. So a rank's memory is known before a GPU is taken, also of a model that
this machine could not hold, and so are the floating-point operations of a step.

Under autocast the operations that CUDA computes in float32, and a CPU does not, are computed in float32 here.
What is not counted: the CUDA context (about half a gigabyte), NCCL's buffers, and what an allocator loses
between its blocks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tasks.core.errors import DataError
from tasks.core.schema import Config, Train
from tasks.loader.collate import Batch
from tasks.models import hub, recipes
from tasks.models.recipes import Recipe
from tasks.runs.footprint import Footprint
from tasks.training import blocks
from tasks.training import sharded_weights as shards
from tasks.training import step as steps
from tasks.training.devices import Device
from tasks.training.ranks import Ranks
from tasks.training.step import Step

CPU = torch.device("cpu")
MANY = 10**9
FLOAT32_ON_CUDA: frozenset[Callable[..., Any]] = frozenset(
    (
        *(functional.layer_norm, functional.group_norm, functional.softmax, functional.log_softmax),
        *(torch.softmax, torch.log_softmax, Tensor.softmax, Tensor.log_softmax),
        *(functional.cross_entropy, functional.nll_loss, functional.normalize, torch.norm),
    )
)
"""Source: the lists in torch's notes on autocast."""


def footprint(config: dict[str, Any], asks_hub: bool) -> dict[str, int]:
    """Return the Footprint of a rank of the config's training; for a child process, whose process group is
    made here. DataError for missing weights if the hub may not be asked for their shape."""
    settings = Config.model_validate(config)
    train, engine = settings.train, settings.engine.train
    assert train is not None
    needs = () if asks_hub else recipes.check_recipe(train).needs
    for lack in hub.lacks(needs, hub.read_lock(settings.runs)):
        raise DataError(lack.problem)
    ranks = Ranks(0, engine.processes, engine.shard)
    if ranks.count > 1:
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks.count)
    return asdict(footprint_on(ranks, train, settings.judged_at_once))


def footprint_on(ranks: Ranks, train: Train, judged: int) -> Footprint:
    """Return the footprint of the first of `ranks`, which looks at `judged` held-out samples at once."""
    samples = train.batch_size // ranks.count
    part = min(train.micro_batch or samples, samples)
    storages, counter = Storages(), FlopCounterMode(display=False)
    with _fake_step(train, ranks, storages) as fake:
        built, batch = storages.held, fake.batch(samples)
        given = storages.held - built
        with _before_update(storages) as before:
            fake.step(0, batch)
        model = fake.step.task.model
        gradients = _bytes_of([one.grad for one in model.parameters() if one.grad is not None])
        has_buckets = ranks.count > 1 and not ranks.shards
        weights = built - (gradients if has_buckets else 0)
        optimizer = storages.held - given - weights - gradients
        peak = max(before[0] + optimizer, storages.most)  # AdamW's averages are there from the second step on
        del batch
        storages.most = 0
        with fake.step.judging() as loss_of, fake.device.autocast():
            loss_of(fake.recipe.example(judged))
        judging = storages.most
    plain = train.model_copy(update={"checkpointing": False, "micro_batch": None})
    with _fake_step(plain, Ranks(0, ranks.count), counter) as fake:
        fake.step(0, fake.batch(part))
    flops = int(counter.get_total_flops() * samples / part)
    tensors = dict.fromkeys(model.state_dict(keep_vars=True).values())  # tied ones have several names
    whole = sum(value.numel() * value.element_size() for value in tensors)
    is_judged_apart = train.ema is not None or train.lora is not None
    saving = whole + optimizer + (weights // 2 if is_judged_apart else 0)
    return Footprint(weights, gradients, optimizer, given, peak, judging, whole, saving, flops)


@contextmanager
def _before_update(storages: Storages) -> Iterator[list[int]]:
    """Yield a list of the most bytes that were held before the optimizer changed the weights."""
    most: list[int] = []
    handle = register_optimizer_step_pre_hook(lambda *_: most.append(storages.most))
    try:
        yield most
    finally:
        handle.remove()


@dataclass(frozen=True)
class _FakeStep:
    step: Step
    device: Device
    recipe: Recipe
    train: Train

    def batch(self, samples: int) -> Batch:
        return self.recipe.example(samples, self.train.pack)


@contextmanager
def _fake_step(train: Train, ranks: Ranks, counter: AbstractContextManager[Any]) -> Iterator[_FakeStep]:
    """Yield a training's step whose tensors hold nothing, and are seen by `counter` from the weights on."""
    precision = "bf16" if train.precision == "fp16" else train.precision  # which takes as much, and no scaler
    changes = {
        **{"steps": train.steps or MANY, "compile": False, "precision": precision},
        "sync_batch_norm": False,  # which takes as much, and a GPU
    }
    train = train.model_copy(update=changes)
    recipe, device = recipes.load_recipe(train), Device(CPU, train.precision)
    if ranks.shards:
        shards.mesh_of(CPU.type, ranks.count)  # of numbers, which a fake tensor does not hold
    model, copy = shards.build_without_memory(recipe), None
    if train.ema is not None or train.lora is not None:
        copy = shards.build_without_memory(recipe)

    def another(_: nn.Module) -> nn.Module:  # as a fake tensor cannot be copied
        assert copy is not None
        return copy if ranks.shards else _allocated(copy)

    with (
        patch.object(steps, "DistributedDataParallel", _Undistributed),
        patch.object(steps, "deepcopy", another),
        patch.object(blocks, "checkpoint", partial(checkpoint, context_fn=_as_before)),
        patch.object(nn.Module, "to", lambda module, *_, **__: module),  # they are there, and cannot be moved
        FakeTensorMode(allow_non_fake_inputs=True),
        counter,
        _FloatsOfCuda(),
    ):
        model = model if ranks.shards else _allocated(model)
        yield _FakeStep(Step(recipe, model, train, device, ranks), device, recipe, train)


def _allocated(model: nn.Module) -> nn.Module:
    """Give weights that were built without memory fake storages; tied ones stay tied."""
    made: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        for name, value in module.named_parameters(recurse=False):
            if value not in made:
                made[value] = nn.Parameter(torch.empty_like(value, device=CPU), value.requires_grad)
            module._parameters[name] = made[value]
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty_like(buffer, device=CPU)
    return model


def _bytes_of(values: Iterable[Any]) -> int:
    storages = [shards.local(value).untyped_storage() for value in values if isinstance(value, Tensor)]
    return sum({id(one): one.nbytes() for one in storages}.values())


class _Undistributed(nn.Module):
    """Stands for DDP: its buckets are there from the start, and take the place of each gradient that is
    exchanged."""

    def __init__(self, module: nn.Module, **_: Any) -> None:
        super().__init__()
        self.module, self._exchanges = module, True
        for parameter in module.parameters():
            if parameter.requires_grad:
                keep: Any = parameter.register_post_accumulate_grad_hook
                keep(partial(self._keep, torch.empty_like(parameter)))

    def _keep(self, place: Tensor, parameter: Tensor) -> None:
        if self._exchanges:
            parameter.grad = place

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self._exchanges = False
        try:
            yield
        finally:
            self._exchanges = True


class _FloatsOfCuda(TorchFunctionMode):
    """Computes in float32 what autocast computes so on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FLOAT32_ON_CUDA and torch.is_autocast_enabled(CPU.type):
            first, *others = args
            args = (first.float() if first.is_floating_point() else first, *others)
        return func(*args, **(kwargs or {}))


def _as_before() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts in which a block computes, and computes again: torch's engine leaves the mode."""
    return nullcontext(), _FloatsOfCuda()


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that are there: `held` now, and at `most`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held = self.most = 0
        self._sizes: dict[int, int] = {}

    def __enter__(self) -> Storages:
        resize, storages = torch.UntypedStorage.resize_, self

        def resized(storage: torch.UntypedStorage, size: int) -> Any:  # by which FSDP2 drops what it gathered
            resize(storage, size)
            storages._set(id(storage), storage.nbytes())

        self._patch = patch.object(torch.UntypedStorage, "resize_", resized)
        self._patch.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patch.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for value in tree_iter(found):
            here = value._local_tensor if isinstance(value, DTensor) else value
            if isinstance(here, Tensor) and not here.is_meta:
                self._see(here.untyped_storage())
        return found

    def _see(self, storage: torch.UntypedStorage) -> None:
        if id(storage) not in self._sizes:
            self._set(id(storage), storage.nbytes())
            weakref.finalize(storage, self._forget, id(storage))

    def _set(self, number: int, size: int) -> None:
        if size or number in self._sizes:
            self.held += size - self._sizes.get(number, 0)
            self._sizes[number] = size
            self.most = max(self.most, self.held)

    def _forget(self, number: int) -> None:
        self.held -= self._sizes.pop(number, 0)
