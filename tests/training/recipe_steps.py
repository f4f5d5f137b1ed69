"""A few steps of a recipe on its examples, alone or as one rank of several that leaves what it saw in a file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tasks.core.schema.recipes import RECIPES
from tasks.core.schema.recipes import RecipeClasses as Row
from tasks.models import recipes
from tasks.training.devices import Device
from tasks.training.ranks import ALONE, Ranks
from tasks.training.step import Step
from tests.models import lengths
from tests.models.examples import SAMPLES, TRAINED, batch_of, train_block

STEPS = 10
TOGETHER = 3
"""Steps that several ranks take."""
RATE = 1e-3
BLOCKS = tuple(TRAINED)
"""The recipes whose models have transformers."""
CASES: tuple[tuple[str, int | None], ...] = (("fp32", None), ("fp32", 1), ("bf16", None), ("bf16", 1))
"""Precision, and samples per pass: all of a rank's share, or one."""

MORE: dict[str, Any] = {"compile": True, "checkpointing": True, "lora": {"rank": 2}}
"""Further keys of the train block, each of which several ranks train with."""


@dataclass
class Seen:
    """The mean loss of each step, and the weights after the last."""

    losses: list[float]
    weights: dict[str, torch.Tensor]


def step_of(name: str, precision: str, micro_batch: int | None, ranks: Ranks = ALONE, **more: Any) -> Step:
    """`more` are further keys of the train block."""
    torch.manual_seed(1)
    keys = {
        **more,
        "steps": STEPS,
        "warmup": 4,
        "lr": RATE,
        "precision": precision,
        "micro_batch": micro_batch,
    }
    train = train_block(name, {key: value for key, value in keys.items() if value is not None})
    recipe = recipes.load_recipe(train)
    model = recipe.build_model()
    silence_dropout(model)
    return Step(recipe, model, train, Device(torch.device("cpu"), precision), ranks)


def silence_dropout(model: torch.nn.Module) -> None:
    """Ranks draw differently, so what several do could not be compared with what one does."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def take_steps(
    name: str, precision: str, micro_batch: int | None, ranks: Ranks = ALONE, steps: int = STEPS, **more: Any
) -> Seen:
    step = step_of(name, precision, micro_batch, ranks, **more)
    share = len(SAMPLES[name]) // ranks.count
    mine = slice(ranks.rank * share, (ranks.rank + 1) * share)
    batch = batch_of(recipes.load_recipe(train_block(name)), name, is_train=True, samples=mine)
    losses = [float(step(number, batch).loss) for number in range(steps)]
    return Seen(losses, {key: value.detach().clone() for key, value in step.model.state_dict().items()})


def case(name: str, precision: str, micro_batch: int | None) -> str:
    return f"{name} {precision} {micro_batch}"


def main(folder: Path, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    RECIPES[lengths.NAME] = Row(*lengths.ROW)
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=count)
    seen: dict[str, Any] = {}
    for name in (*TRAINED, lengths.NAME):
        for precision, micro_batch in CASES:
            found = take_steps(name, precision, micro_batch, Ranks(rank, count), TOGETHER)
            seen[case(name, precision, micro_batch)] = dataclasses.asdict(found)
    for name in BLOCKS:
        for key, value in MORE.items():
            found = take_steps(name, "fp32", None, Ranks(rank, count), TOGETHER, **{key: value})
            seen[f"{name} {key}"] = dataclasses.asdict(found)
        found = take_steps(name, "fp32", None, Ranks(rank, count, shards=True), TOGETHER)
        seen[f"{name} shard"] = {"losses": found.losses}
    torch.save(seen, folder / f"{rank}.pt")
    distributed.destroy_process_group()
