"""What the ranks of a training share: one loss and one gradient, and the decision of what to do next.

A rank must not act alone on what only it has noticed (a file `stop`, a sample that cannot be read, a full
disk), or the others wait for it in the next exchange. So after each piece of work that may end differently,
all ranks exchange one integer and take the highest: data at an end, go on, stop, failed.

Of a contrast, each rank computes the loss of its own samples, compared with the features of all ranks: its
own rows of the logits. No gradient is missing, because those of the other ranks' losses with respect to a
rank's features come back to it. DDP then takes the mean over ranks, which is the gradient of the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import TCPStore

from tasks.core.errors import OtherRankError, first_line
from tasks.models.task import ALL, Contrastive, Features, Loss, Task
from tasks.runs.environment import MEETING, STORE

PATIENCE_S = 600.0
"""How long a rank waits for the others in one exchange, and so the longest that one rank may save or read
alone. The agent notices a rank that was killed or stopped long before that."""


class RankRequest(IntEnum):
    """What a rank requests, in rising order: the highest request of all ranks applies to all."""

    DONE = 0
    GO_ON = 1
    STOP = 2
    FAILED = 3


@dataclass
class Vote:
    """The request of this rank and, once all ranks have voted, the one that applies."""

    order: RankRequest = RankRequest.GO_ON


@dataclass(frozen=True)
class Ranks:
    """The number of this process's rank, and the count of ranks in its group of torch.distributed."""

    rank: int = 0
    count: int = 1
    shards: bool = False
    """Whether each rank holds a part of the weights; see `tasks.training.sharded_weights`."""

    def __str__(self) -> str:
        """Return a phrase for the log; empty for a single rank."""
        return "" if self.count == 1 else f", as rank {self.rank} of {self.count}"

    def gather(self, features: Tensor) -> Tensor:
        """Gather [samples, ...] of each rank into [ranks * samples, ...], in the order of the ranks, with the
        gradient."""
        if self.count == 1:
            return features
        gathered: Tensor = _Gather.apply(features, self)
        return gathered

    def own(self, samples: int) -> slice:
        """Return this rank's part of so many gathered samples."""
        share = samples // self.count
        return ALL if self.count == 1 else slice(self.rank * share, (self.rank + 1) * share)

    def own_of_sum(self, gathered: Tensor) -> Tensor:
        """Return this rank's part of the sum over ranks of [ranks * samples, ...], without a gradient."""
        if self.count > 1 and gathered.is_cuda:  # gloo has no such exchange
            part = torch.empty_like(gathered[self.own(len(gathered))])
            distributed.reduce_scatter_tensor(part, gathered.contiguous())
            return part
        return self.sum(gathered)[self.own(len(gathered))]

    @property
    def is_first(self) -> bool:
        """Return whether this rank writes the files of which a run has one."""
        return self.rank == 0

    @contextmanager
    def agreeing(self) -> Iterator[Vote]:
        """Do work that may end differently from rank to rank and contains no exchange. Afterwards all ranks
        know the highest request; OtherRankError where another rank raised."""
        vote = Vote()
        try:
            yield vote
        except Exception:
            with suppress(OtherRankError):
                self._highest(RankRequest.FAILED)
            raise
        vote.order = self._highest(vote.order)
        if vote.order is RankRequest.FAILED:
            raise OtherRankError("another rank has failed; its own log has the reason")

    def of_first(self, *values: int) -> list[int]:
        """Return the first rank's values, on every rank."""
        if self.count == 1:
            return list(values)
        sent = torch.tensor(values)
        distributed.broadcast(sent, src=0)
        numbers: list[int] = sent.tolist()
        return numbers

    def object_of_first(self, value: Any) -> Any:
        """Return the first rank's value, of any kind, on every rank."""
        sent = [value]
        distributed.broadcast_object_list(sent, src=0)
        return sent[0]

    def of_all(self, value: Tensor) -> list[Tensor]:
        """Return the values of all ranks, in order. They must have one shape and type, and be on the CPU."""
        if self.count == 1:
            return [value]
        values = [torch.empty_like(value) for _ in range(self.count)]
        distributed.all_gather(values, value.contiguous())
        return values

    def _highest(self, order: RankRequest) -> RankRequest:
        if self.count == 1:
            return order
        number = torch.tensor(order)
        try:
            distributed.all_reduce(number, distributed.ReduceOp.MAX)
        except RuntimeError as error:
            why = first_line(error)
            raise OtherRankError(f"another rank is gone, or does not answer: {why}") from error
        return RankRequest(int(number))

    def means(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the means over all ranks of tensors of shape [], without a gradient, in one exchange."""
        if self.count == 1:
            return {name: value.detach() for name, value in values.items()}
        summed = self.sum(torch.stack([value.detach().double() for value in values.values()]))
        return dict(zip(values, summed / self.count, strict=True))

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over all ranks, without a gradient."""
        total = value.detach().clone()
        if self.count > 1:
            distributed.all_reduce(total)
        return total


ALONE = Ranks()


@contextmanager
def joined(environment: Mapping[str, str] = os.environ, shards: bool = False) -> Iterator[Ranks]:
    """Join a group with the other ranks that the environment names, as torchrun's does.

    Values on the CPU go by gloo, and those on GPUs by NCCL. Only ranks that end in order leave the group in
    order: one that fails must not wait for the others again.
    """
    count = int(environment.get("WORLD_SIZE", "1"))
    ranks = Ranks(int(environment.get("RANK", "0")), count, shards and count > 1)
    if ranks.count == 1:
        yield ranks
        return
    patience = timedelta(seconds=PATIENCE_S)
    try:
        store = _store(environment, ranks, patience)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            init_method="env://" if store is None else None,
            store=store,
            rank=ranks.rank,
            world_size=ranks.count,
            timeout=patience,
        )
    except RuntimeError as error:
        why = first_line(error)
        raise OtherRankError(f"the {ranks.count} ranks did not all come together: {why}") from error
    yield ranks
    distributed.destroy_process_group()


def _store(environment: Mapping[str, str], ranks: Ranks, patience: timedelta) -> TCPStore | None:
    """The store by which the ranks exchange their addresses; the first rank serves it at the socket that its
    agent has opened. None where another launcher started them, such as torchrun."""
    if MEETING not in environment:
        return None
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    socket = int(environment[STORE]) if ranks.is_first else None
    return TCPStore(address, port, ranks.count, ranks.is_first, patience, master_listen_fd=socket)


class Spread(nn.Module):
    """A task as one rank of several computes it: this is what DDP and FSDP2 wrap."""

    def __init__(self, task: Task, ranks: Ranks) -> None:
        super().__init__()
        self.task, self.ranks = task, ranks

    def forward(
        self, batch: Mapping[str, Any], gradients: Features | None = None, contrasted: Features | None = None
    ) -> Loss | tuple[Tensor, Loss | None]:
        """Return the loss of this rank's share of the batch, for a contrast compared with all samples.

        With `gradients`, of features that were encoded before, return a scalar whose gradient is theirs for
        the weights; with `contrasted`, which are all features, return this rank's loss of them too, for the
        contrast's own parameters.
        """
        if gradients is None:
            return self._loss(batch)
        assert isinstance(self.task, Contrastive)
        features = self.task.encode(batch)
        # DDP takes the mean over ranks, and the features need the sum.
        products = [(features[name] * gradient).sum() for name, gradient in gradients.items()]
        loss = None if contrasted is None else self._contrast(contrasted)
        return self.ranks.count * torch.stack(products).sum(), loss

    def encode(self, batch: Mapping[str, Any]) -> Features:
        """Return the features of this rank's share of the batch."""
        assert isinstance(self.task, Contrastive)
        return self.task.encode(batch)

    def judge(self, batch: Mapping[str, Any]) -> Loss:
        """Return the loss of a batch of this rank, which is compared with nothing else."""
        loss: Loss = self.task(batch)
        return loss

    def _loss(self, batch: Mapping[str, Any]) -> Loss:
        if self.ranks.count == 1 or not isinstance(self.task, Contrastive):
            loss: Loss = self.task(batch)
            return loss
        features = self.task.encode(batch)
        return self._contrast({name: self.ranks.gather(value) for name, value in features.items()})

    def _contrast(self, gathered: Features) -> Loss:
        assert isinstance(self.task, Contrastive)
        return self.task.contrast(gathered, self.ranks.own(len(next(iter(gathered.values())))))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        parts = [torch.empty_like(features) for _ in range(ranks.count)]
        distributed.all_gather(parts, features.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.own_of_sum(gradients[0]), None
