"""Which samples a stream reads where: a plan over the sizes of its shards, made without reading any.

An epoch is all shards in a new order, one after the other, cut into as many equal pieces as there are lanes,
counted over all ranks. A lane reads one piece per epoch, a different one each time. So all lanes reach the
end of an epoch together, whatever the shards' sizes, and every sample belongs to one of them. A piece is
shuffled in blocks, the first of which are small: a stream yields after the first block, and continues within
a block after a resume.

The price compared with the index: samples meet only those of their block, and a shard in which one piece
ends and another begins is read for both.

All functions are plain functions of numbers. Source of the even cuts: J. Bresenham, "Algorithm for computer
control of a digital plotter" (1965).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import numpy as np

from tasks.loader.order import Integers, Samples, rank_positions

LANES = (24, 12, 6, 2, 1)
"""Lanes per rank, to choose from. Each is divisible by many numbers of workers; a stream takes the first that
its shards can fill."""
FIRST_BLOCK = 64
"""Samples in a block; each block is twice as large as the one before, up to the largest."""


@dataclass(frozen=True)
class Segment:
    """The samples `rows` of shard number `shard`, from first to last."""

    shard: int
    rows: range


@dataclass(frozen=True)
class LaneBlock:
    """Neighbouring samples of a lane: what is read, in order, and the order in which it is yielded."""

    segments: Sequence[Segment]
    order: Sequence[int]


@dataclass(frozen=True)
class Lane:
    """Lane number `number` of `lanes`, over all ranks, of shards that hold `sizes` samples each. `largest` is
    the size of a block; None reads the shards as they lie, without shuffling."""

    number: int
    lanes: int
    sizes: Sequence[int]
    seed: int
    largest: int | None

    def blocks(self, start: int) -> Iterator[tuple[LaneBlock, int]]:
        """Return the endless sequence of its blocks from its sample number `start` on, and how many samples
        of the first block come before that sample."""
        samples = sum(self.sizes)
        rounds, skipped = divmod(start, samples)  # after as many epochs as lanes, each piece is read
        for epoch in count(rounds * self.lanes):
            piece = self._piece(epoch, samples)
            if skipped >= len(piece):
                skipped -= len(piece)
                continue
            shards, ends = self._shards(epoch)
            for block in _blocks(piece, self.largest, skipped):
                skipped = max(piece.start + skipped - block.start, 0)
                order = list(range(len(block)))
                if self.largest is not None:
                    Random(f"{self.seed} {epoch} {block.start}").shuffle(order)
                yield LaneBlock(list(_segments(block, shards, ends)), order), skipped
                skipped = 0

    def _piece(self, epoch: int, samples: int) -> range:
        """Return the samples of the epoch that belong to this lane."""
        turn = (self.number + epoch) % self.lanes
        return range(turn * samples // self.lanes, (turn + 1) * samples // self.lanes)

    def _shards(self, epoch: int) -> tuple[Integers, Integers]:
        """Return the shards in the order of the epoch, and where each ends among its samples."""
        shards = np.arange(len(self.sizes))
        if self.largest is not None:
            shards = Samples().indices(shards + epoch * len(shards), len(shards), self.seed)
        return shards, np.cumsum(np.array(self.sizes)[shards])


def _segments(block: range, shards: Integers, ends: Integers) -> Iterator[Segment]:
    for place in range(int(np.searchsorted(ends, block.start, side="right")), len(shards)):
        first, end = int(ends[place - 1]) if place else 0, int(ends[place])
        if first >= block.stop:
            return
        if end > first:
            yield Segment(
                int(shards[place]), range(max(block.start - first, 0), min(block.stop, end) - first)
            )


def lane_count(shards: int, world_size: int) -> int:
    """Return the number of lanes of a rank: as many as can have a shard each, and at least one."""
    return next((lanes for lanes in LANES if lanes * world_size <= shards), 1)


@dataclass(frozen=True)
class RankShare:
    """Return the share of a rank's `size` samples per batch that seat number `seat` contributes."""

    seat: int
    size: int
    mine: slice


def shares_of(rank: int, world_size: int, seats: int, batch_size: int) -> list[RankShare]:
    """Return the shares that make up a rank's slice of a batch. The slice is filled evenly by as many seats
    as there were ranks when the training began: one whole share, as long as the number of ranks is the same.
    """
    mine, size = rank_positions(0, batch_size, rank, world_size), len(rank_positions(0, batch_size, 0, seats))
    return [
        RankShare(seat, size, slice(max(mine.start - seat * size, 0), min(mine.stop - seat * size, size)))
        for seat in range(mine.start // size, -(-mine.stop // size))
    ]


def given_before(step: int, lane: int, lanes: int) -> int:
    """Return how many batches a lane, in 0..lanes-1 of its rank, gave before `step`. Batch s comes from lane
    s modulo their number."""
    return (step - lane + lanes - 1) // lanes if step > lane else 0


def _blocks(piece: range, largest: int | None, skipped: int) -> Iterator[range]:
    """Yield the blocks of a piece, from the one with its sample number `skipped` on."""
    most = len(piece) if largest is None else largest
    start, size = piece.start, most if largest is None else min(FIRST_BLOCK, most)
    first = piece.start + skipped
    while size < most and start + size <= first:
        start, size = start + size, min(2 * size, most)
    start += (first - start) // size * size
    while start < piece.stop:
        yield range(start, min(start + size, piece.stop))
        start, size = start + size, min(2 * size, most)
