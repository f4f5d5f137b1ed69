"""A few steps of a recipe on its examples, alone or as one rank of several that leaves what it saw in a file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from safetensors.torch import load_model
from torch import distributed, nn

from tasks.core.schema import Train
from tasks.core.schema.recipes import RECIPES
from tasks.core.schema.recipes import RecipeClasses as Row
from tasks.loader.feed import Feed, FeedState
from tasks.models import recipes
from tasks.runs.checkpoints import MODEL
from tasks.runs.folder import RunFolder
from tasks.training import sharded_weights as shards
from tasks.training.checkpoints import CheckpointSaver
from tasks.training.devices import Device
from tasks.training.ranks import ALONE, Ranks
from tasks.training.resume import generators_of, take_up
from tasks.training.step import Step
from tests.models import lengths
from tests.models.examples import SAMPLES, TRAINED, batch_of, train_block

STEPS = 10
TOGETHER = 3
"""Steps that several ranks take."""
RATE = 1e-3
BLOCKS = tuple(TRAINED)
"""The recipes whose models have transformers."""


@dataclass(frozen=True)
class Case:
    """What ranks train together, whole or in shards; `more` are further keys of the train block."""

    name: str
    precision: str = "fp32"
    micro_batch: int | None = None
    """Samples per pass: all of a rank's share where it is None."""
    shard: bool = False
    more: tuple[str, ...] = ()

    def keys(self, *names: str) -> dict[str, Any]:
        """The further keys, or those of some names."""
        return {name: MORE[name] for name in self.more if name in (names or self.more)}

    def __str__(self) -> str:
        marks = [*(["shard"] if self.shard else []), *self.more]
        return "-".join([self.name, self.precision, str(self.micro_batch), *marks])


MORE: dict[str, Any] = {"compile": True, "checkpointing": True, "lora": {"rank": 2}}
"""Further keys of the train block by the names that cases give them."""
DAILY = [Case(name, *kind) for name in (*TRAINED, lengths.NAME) for kind in (("fp32", 1), ("bf16", None))]
"""Cases in which each precision and each size of a pass stands once."""
CONTRACT = [
    *(Case(name, *kind) for name in (*TRAINED, lengths.NAME) for kind in (("fp32", None), ("bf16", 1))),
    *(
        Case(name, "fp32", 1 if "checkpointing" in more else None, shard, more)
        for name in BLOCKS
        for shard in (False, True)
        for more in ((), ("checkpointing",), ("compile",), ("compile", "checkpointing"), ("lora",))
        if not (shard and "lora" in more) and (shard or more)
    ),
]
"""What every recipe keeps besides, on any number of ranks."""


@dataclass
class Seen:
    """The mean loss of each step, and the weights after the last."""

    losses: list[float]
    weights: dict[str, torch.Tensor]


def step_of(name: str, precision: str, micro_batch: int | None, ranks: Ranks = ALONE, **more: Any) -> Step:
    train = train_of(name, precision, micro_batch, **more)
    torch.manual_seed(train.seed)
    recipe = recipes.load_recipe(train)
    model = silence_dropout(recipe.build_model())
    return Step(recipe, model, train, Device(torch.device("cpu"), precision), ranks)


def train_of(name: str, precision: str, micro_batch: int | None, **more: Any) -> Train:
    """`more` are further keys of the train block."""
    keys = {
        **more,
        "steps": STEPS,
        "warmup": 4,
        "lr": RATE,
        "seed": 1,
        "precision": precision,
        "micro_batch": micro_batch,
    }
    return train_block(name, {key: value for key, value in keys.items() if value is not None})


def silence_dropout(model: nn.Module) -> nn.Module:
    """Ranks draw differently, so what several do could not be compared with what one does."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def take_steps(
    name: str, precision: str, micro_batch: int | None, ranks: Ranks = ALONE, steps: int = STEPS, **more: Any
) -> Seen:
    step = step_of(name, precision, micro_batch, ranks, **more)
    batch = share_of(name, ranks)
    losses = [float(step(number, batch).loss) for number in range(steps)]
    return Seen(losses, {key: value.detach().clone() for key, value in step.model.state_dict().items()})


def share_of(name: str, ranks: Ranks) -> dict[str, Any]:
    """The batch of this rank."""
    share = len(SAMPLES[name]) // ranks.count
    mine = slice(ranks.rank * share, (ranks.rank + 1) * share)
    return batch_of(recipes.load_recipe(train_block(name)), name, is_train=True, samples=mine)


def save_and_resume(case: Case, ranks: Ranks, folder: Path) -> dict[str, Any]:
    """Take steps as a training does, and the same once more from the checkpoint of the first; the losses of
    both, and their weights under the names of a model that others load."""
    run = RunFolder(folder)
    train = train_of(case.name, case.precision, case.micro_batch, **case.keys())
    batch, feed = share_of(case.name, ranks), cast(Feed, SimpleNamespace(state=lambda _=0: FeedState(0)))
    device = Device(torch.device("cpu"), case.precision)
    recipe = recipes.load_recipe(train)
    build = recipe.build_model
    recipe.build_model = lambda **keys: silence_dropout(build(**keys))  # type: ignore[method-assign]
    found: dict[str, Any] = {}
    with CheckpointSaver(run, ranks) as saver:
        for name in ("whole", "resumed"):
            start = take_up(run, train, recipe, device, feed, ranks)
            losses = []
            for number in range(start.step, TOGETHER):
                losses.append(float(start.take_step(number, batch).loss))
                if number == 0:
                    state = {
                        **start.take_step.state(),
                        "feed": FeedState(0).to_json(),
                        **generators_of(ranks),
                    }
                    saver.save(1, start.take_step.model, state, start.take_step.parts())
                    saver.wait()
            weights = shards.gather(start.take_step.model, ranks)
            found[name] = {"losses": losses, "weights": weights, "start": start.step}
            distributed.barrier()
    if ranks.is_first:
        load_model(build(), run.checkpoint(1) / MODEL)
    return found


def main(folder: Path, rank: int, count: int, cases: list[Case]) -> None:
    """Leave in the folder what this rank of `count` saw of each case."""
    torch.set_num_threads(1)
    RECIPES[lengths.NAME] = Row(*lengths.ROW)
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=count)
    seen: dict[str, Any] = {}
    for case in cases:
        ranks = Ranks(rank, count, case.shard)
        if case in DAILY:
            found = take_steps(case.name, case.precision, case.micro_batch, ranks, TOGETHER)
            seen[str(case)] = dataclasses.asdict(found)
        else:
            seen[str(case)] = save_and_resume(case, ranks, folder / str(case))
    torch.save(seen, folder / f"{rank}.pt")
    distributed.destroy_process_group()
