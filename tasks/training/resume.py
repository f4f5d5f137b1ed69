"""Begins a training at the newest sound checkpoint, or anew; in the same way on all ranks.

The first rank chooses, because a disk may show a checkpoint to one rank and not yet to another. Weights,
optimizer and the loader's place are the same on all ranks; random generators are each rank's own, and the
checkpoint holds all of them. On another number of ranks the training goes on with the same samples in the
same order, and its sums are rounded differently.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_model

from tasks.core.schema import Train
from tasks.loader.feed import Feed, FeedState
from tasks.models.recipes import Recipe
from tasks.runs.checkpoints import MODEL, Checkpoint, read_meta
from tasks.runs.folder import RunFolder
from tasks.training import checkpoints
from tasks.training import sharded_weights as shards
from tasks.training.devices import Device, random_state, set_random_state
from tasks.training.ranks import Ranks
from tasks.training.step import Step

ANEW = -1
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """All that a step changes, as in the checkpoint of `step`, and the loader's place.

    `is_unmeasured` where the training was stopped or killed before that checkpoint's validation, and `is_new`
    where there is no checkpoint yet.
    """

    take_step: Step
    step: int
    place: FeedState
    is_unmeasured: bool
    is_new: bool = False


def take_up(
    run: RunFolder, options: Train, recipe: Recipe, device: Device, feed: Feed, ranks: Ranks
) -> Start:
    """Return the start from the newest sound checkpoint, or a new one."""
    chosen, is_unmeasured = _choose(run, options, ranks)
    torch.manual_seed(options.seed)
    if ranks.shards:
        take_step = _in_shards(recipe, options, device, ranks, chosen)
    else:
        model = recipe.build_model(pretrained=chosen is None).to(device.torch)
        take_step = Step(recipe, model, options, device, ranks)
    if chosen is None:
        _draw_as_rank(ranks, options.seed, 0)
        return Start(take_step, 0, feed.state(), False, is_new=True)
    state = checkpoints.restore(chosen, None if ranks.shards else take_step.model)
    take_step.load(state, chosen.path / checkpoints.PARTS)
    _restore_generators(state.get("ranks", []), ranks, options.seed, chosen)
    is_kept = "feed" in state  # older checkpoints do not hold it
    place = FeedState.of(state["feed"]) if is_kept else feed.state(chosen.step)
    return Start(take_step, chosen.step, place, is_unmeasured)


def _in_shards(
    recipe: Recipe, options: Train, device: Device, ranks: Ranks, chosen: Checkpoint | None
) -> Step:
    """The step whose weights the first rank alone builds or reads, in its host's memory, and sends."""
    source = None
    with ranks.agreeing():
        if ranks.is_first:
            source = recipe.build_model(pretrained=chosen is None)
            if chosen is not None:
                load_model(source, chosen.path / MODEL)
    take_step = Step(recipe, shards.build_without_memory(recipe), options, device, ranks)
    take_step.fill(source)
    return take_step


def is_due(step: int, options: Train) -> bool:
    """Whether `step` is to have a checkpoint, which is validated; a stop leaves others."""
    return step == options.steps or step % options.checkpoint_every == 0


def generators_of(ranks: Ranks) -> dict[str, Any]:
    """Return the generators of all ranks but the first, whose generators the checkpoint has already.

    The result is empty for a single rank.
    """
    gathered = {name: ranks.of_all(state) for name, state in random_state().items()}
    others = [{name: states[rank] for name, states in gathered.items()} for rank in range(1, ranks.count)]
    return {"ranks": others} if others else {}


def _choose(run: RunFolder, options: Train, ranks: Ranks) -> tuple[Checkpoint | None, bool]:
    """The first rank's choice, and whether it is still to be validated."""
    step, is_unmeasured = ANEW, False
    with ranks.agreeing():
        found = checkpoints.newest(run) if ranks.is_first else None
        if found is not None:
            meta = read_meta(found)
            step = found.step
            is_unmeasured = meta is not None and meta.val_loss is None and is_due(step, options)
    step, unmeasured = ranks.of_first(step, int(is_unmeasured))
    return None if step == ANEW else Checkpoint(step, run.checkpoint(step)), bool(unmeasured)


def _restore_generators(
    others: list[Mapping[str, torch.Tensor | None]], ranks: Ranks, seed: int, checkpoint: Checkpoint
) -> None:
    """Set this rank's generators; the first rank's are restored with the model."""
    before = 1 + len(others)
    if before == ranks.count:
        if not ranks.is_first:
            set_random_state(others[ranks.rank - 1])
        return
    if ranks.is_first:
        rounding = "%s is of %d ranks, and goes on with %d: sums are rounded differently from here on"
        logger.warning(rounding, checkpoint.path.name, before, ranks.count)
    _draw_as_rank(ranks, seed, checkpoint.step)


def _draw_as_rank(ranks: Ranks, seed: int, step: int) -> None:
    """Seed a rank's generators: ranks draw different random numbers, or they would drop out the same
    features; the first draws like one that is alone."""
    if not ranks.is_first:
        text = f"{seed} {step} {ranks.rank}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big"))
