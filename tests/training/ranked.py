"""One rank of several that take steps together: `ranked FOLDER RANK COUNT`.

It leaves, as FOLDER/<rank>.pt, its gradients and weights by kind of task and samples per pass.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tasks.training.ranks import ALONE, Ranks
from tests.training.towers import KINDS, SAMPLES, batch, step_of, without_dropout

STEPS = 3


def take_steps(kind: str, micro_batch: int, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Loss and gradients of the first step, and the weights after the last."""
    model = without_dropout()
    if ranks.rank:
        torch.nn.init.zeros_(model.text.weight)  # all begin as rank 0 does
    keys = {"micro_batch": micro_batch} if micro_batch else {}
    step = step_of(KINDS[kind], model, ranks, grad_clip=1e6, **keys)
    start, share = ranks.rank * SAMPLES // ranks.count, SAMPLES // ranks.count
    mine = {name: value[start : start + share] for name, value in batch().items()}
    loss = step(0, mine).loss
    gradients = {name: p.grad.clone() for name, p in step.task.model.named_parameters() if p.grad is not None}
    for number in range(1, STEPS):
        step(number, mine)
    return {"loss": loss, "gradients": gradients, "weights": step.model.state_dict()}


def main(folder: Path, rank: int, count: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=count)
    half = -(-SAMPLES // count // 2)
    cases = [(kind, size) for kind in KINDS for size in (0, half)]
    torch.save(
        {f"{kind}-{size}": take_steps(kind, size, Ranks(rank, count)) for kind, size in cases},
        folder / f"{rank}.pt",
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
