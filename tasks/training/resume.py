"""Where a training begins: at the newest sound checkpoint, or anew; the same for all ranks.

The first rank chooses, because a disk may show a checkpoint to one rank and not yet to another. Weights,
optimizer and the loader's place are the same on all ranks; random generators are each rank's own, and all of
them stand in the checkpoint. On another number of ranks the training goes on with the same samples in the
same order, and its sums are rounded differently.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tasks.core.schema import Train
from tasks.loader.feed import Feed, FeedState
from tasks.models.recipes import Recipe
from tasks.runs.checkpoints import Checkpoint, read_meta
from tasks.runs.folder import RunFolder
from tasks.training import checkpoints
from tasks.training.devices import Device
from tasks.training.ranks import Ranks
from tasks.training.step import Step, random_state, set_random_state

ANEW = -1
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Start:
    """All that a step changes, as the checkpoint of `step` has it, and the loader's place.

    `is_unmeasured` where a stop or a death came before that checkpoint's validation.
    """

    take_step: Step
    step: int
    place: FeedState
    is_unmeasured: bool


def take_up(
    run: RunFolder, options: Train, recipe: Recipe, device: Device, feed: Feed, ranks: Ranks
) -> Start:
    """The start that the newest sound checkpoint gives, or a new one."""
    chosen, is_unmeasured = _chosen(run, options, ranks)
    torch.manual_seed(options.seed)
    model = recipe.build_model(pretrained=chosen is None).to(device.torch)
    take_step = Step(recipe, model, options, device, ranks)
    if chosen is None:
        _draw_as_rank(ranks, options.seed, 0)
        return Start(take_step, 0, feed.state(), False)
    state = checkpoints.restore(chosen, take_step.model)
    take_step.load(state)
    _restore_generators(state.get("ranks", []), ranks, options.seed, chosen, device)
    is_kept = "feed" in state  # which it is not in a checkpoint from before
    place = FeedState.of(state["feed"]) if is_kept else feed.state(chosen.step)
    return Start(take_step, chosen.step, place, is_unmeasured)


def is_due(step: int, options: Train) -> bool:
    """Whether a checkpoint belongs at `step`, which is validated; a stop leaves others."""
    return step == options.steps or step % options.checkpoint_every == 0


def generators_of(ranks: Ranks, device: Device) -> dict[str, Any]:
    """What a checkpoint keeps beside the first rank's generators: those of the others, if there are any."""
    cpu, cuda = random_state(device)
    all_cpu = ranks.of_all(cpu)
    all_cuda = [None] * ranks.count if cuda is None else ranks.of_all(cuda)
    others = [{"cpu": one, "cuda": other} for one, other in zip(all_cpu, all_cuda, strict=True)][1:]
    return {"ranks": others} if others else {}


def _chosen(run: RunFolder, options: Train, ranks: Ranks) -> tuple[Checkpoint | None, bool]:
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
    others: list[Mapping[str, Any]], ranks: Ranks, seed: int, checkpoint: Checkpoint, device: Device
) -> None:
    """Of this rank; the first one's are in the state of the model already."""
    before = 1 + len(others)
    if before != ranks.count and ranks.is_first:
        logger.warning(
            "%s is of %d ranks, and goes on with %d: sums are rounded differently from here on",
            checkpoint.path.name,
            before,
            ranks.count,
        )
    if before != ranks.count:
        _draw_as_rank(ranks, seed, checkpoint.step)
    elif not ranks.is_first:
        mine = others[ranks.rank - 1]
        set_random_state(device, (mine["cpu"], mine["cuda"] if device.is_cuda else None))


def _draw_as_rank(ranks: Ranks, seed: int, step: int) -> None:
    """Ranks draw different random numbers, or they would drop out the same; the first draws as one alone."""
    if not ranks.is_first:
        text = f"{seed} {step} {ranks.rank}".encode()
        torch.manual_seed(int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big"))
