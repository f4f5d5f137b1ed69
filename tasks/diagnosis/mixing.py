"""Measures how well an order of samples is shuffled, by where the samples lie in storage.

A perfect shuffle is a new permutation of all samples in every epoch, each as likely as any other. What it is
expected to give is known in closed form, so each figure here is a share of that, or stands beside it:

- `shard_mixing`: the distinct shards in a batch. Whatever a shard has in common, such as its source or its
  labels, is averaged out only over several of them; the convergence of SGD on stored blocks suffers by that
  (L. Xu et al., "In-Database Machine Learning with CorgiPile: Stochastic Gradient Descent without Full Data
  Shuffle", SIGMOD 2022).
- `neighbour_distance`: the mean distance in storage between a sample and the next. It is the absolute form of
  the statistic of successive differences of ranks (R. Bartels, "The Rank Version of von Neumann's Ratio Test
  for Randomness", JASA 77, 1982); MosaicML's simulator takes the entropy of the same differences.
- `storage_correlation`: Spearman's correlation of place in storage and time within an epoch.
- `met_again`: how much of a batch comes together again in the next epoch.

All functions are pure. Of a dataset of more than MOST samples they look at some batches of an epoch, and at
two epochs of its first shards for `met_again`. What comes together again there beyond chance hardly depends
on how many shards follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, inf, lgamma
from typing import Any

import numpy as np

from tasks.core.units import number, percent
from tasks.loader.lanes import Lane, given_before
from tasks.loader.order import Integers, Order, permute, sample_seeds

MOST, MOST_BATCHES = 1 << 17, 1024
"""The most samples, and batches, that are looked at in one epoch."""
MOST_LANES, MOST_SHARDS = 512, 1 << 19
"""The most lanes that are opened, and the most shards that are put into order for all of them together."""
LEAST = 4
"""The batches that are looked at in any case."""

Draw = Callable[[range], Integers]
"""The places in storage of the samples of some steps: all ranks' batches of `steps`, one after the other."""


@dataclass(frozen=True)
class ShuffleQuality:
    """How well batches of `batch` out of `samples` samples in `shards` shards are mixed; the module says what
    the figures mean."""

    samples: int
    shards: int
    batch: int
    shards_per_batch: float
    perfect_shards_per_batch: float
    neighbour_distance: float
    """1 for a perfect shuffle, about 0 for samples in the order of storage."""
    storage_correlation: float
    """0 for a perfect shuffle, 1 for samples in the order of storage. It is that of one epoch, in which n
    groups of neighbours, such as windows, give it a size of about 1 / sqrt(n) by chance."""
    met_again: float
    """The share of a batch's other samples that a sample meets in a batch of the next epoch as well."""
    perfect_met_again: float

    @property
    def shard_mixing(self) -> float:
        """The shards in a batch over those of a perfect shuffle."""
        return self.shards_per_batch / self.perfect_shards_per_batch

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shard_mixing": self.shard_mixing}

    def __str__(self) -> str:
        own, perfect = self.shards_per_batch, self.perfect_shards_per_batch
        shards = f"{own:.1f} in a batch of {self.batch:,}, of {perfect:.1f}"
        return (
            f"{self.shard_mixing:.2f} of a perfect shuffle's mixing of shards ({shards}), "
            f"neighbours {number(self.neighbour_distance, 2)} as far apart, "
            f"{percent(self.met_again)} of a batch met again in the next epoch "
            f"({percent(self.perfect_met_again)} by chance)"
        )


def indexed_draw(order: Order, seed: int, batch: int, sizes: Sequence[int], window: int = 1) -> Draw:
    """Return what the indexed reader draws from shards of these sizes. Where rows are packed, those of a
    `window` of samples stand in a random order, and each takes samples from all over it, about as if they
    were dealt."""
    samples = sum(sizes)

    def draw(steps: range) -> Integers:
        positions = np.arange(steps.start * batch, steps.stop * batch)
        windows, within = np.divmod(positions, window)
        if window > 1:
            keys = sample_seeds(windows, seed).astype(np.uint64)
            positions = windows * window + permute(within, window, keys)
        return order.indices(positions, samples, seed)

    return draw


def streamed_draw(one: Lane, lanes: int, seats: int, batch: int, sizes: Sequence[int]) -> Draw:
    """Return what a stream draws from shards of these sizes by `lanes` like `one` for each of `seats`: step s
    comes from lane s modulo their number of every seat."""
    starts, share = np.cumsum([0, *sizes]), batch // seats

    def draw(steps: range) -> Integers:
        streams: dict[int, _Places] = {}
        found = []
        for step in steps:
            for seat in range(seats):
                number = seat * lanes + step % lanes
                if number not in streams:
                    lane = replace(one, number=number, sizes=sizes)
                    before = given_before(step, step % lanes, lanes) * share
                    streams[number] = _Places(lane, starts, before)
                found.append(streams[number].take(share))
        return np.concatenate(found)

    return draw


class _Places:
    """The places in storage of a lane's samples, from its sample number `start` on."""

    def __init__(self, lane: Lane, starts: Integers, start: int) -> None:
        self._blocks = self._each(lane, starts, start)
        self._left = np.empty(0, np.int64)

    def take(self, count: int) -> Integers:
        parts, missing = [self._left], count - len(self._left)
        while missing > 0:
            parts.append(next(self._blocks))
            missing -= len(parts[-1])
        there = np.concatenate(parts)
        self._left = there[count:]
        return there[:count]

    @staticmethod
    def _each(lane: Lane, starts: Integers, start: int) -> Iterator[Integers]:
        for block, skipped in lane.blocks(start):
            rows = [np.arange(one.rows.start, one.rows.stop) + starts[one.shard] for one in block.segments]
            yield np.concatenate(rows)[block.order][skipped:]


def quality_of(
    draw_of: Callable[[Sequence[int]], Draw], sizes: Sequence[int], batch: int, most: int = MOST_BATCHES
) -> ShuffleQuality:
    """Return the quality of an order of shards that hold `sizes` samples each, in batches of `batch` over all
    ranks, at most all samples, by at most so many batches. `draw_of` returns what is drawn from shards of the
    given sizes."""
    samples, draw = sum(sizes), draw_of(sizes)
    every = samples // batch
    steps = np.unique(np.linspace(0, every - 1, min(every, max(most, LEAST), MOST // batch + 1)).astype(int))
    drawn = np.stack([draw(range(step, step + 2))[: batch + 1] for step in steps.tolist()])
    times = steps[:, None] * batch + np.arange(batch)
    by_chance = (batch - 1) / max(samples - 1, 1)
    return ShuffleQuality(
        samples=samples,
        shards=len(sizes),
        batch=batch,
        shards_per_batch=distinct_shards(drawn[:, :batch], sizes),
        perfect_shards_per_batch=perfect_distinct_shards(sizes, batch),
        neighbour_distance=neighbour_distance(drawn, samples),
        storage_correlation=rank_correlation(times.ravel(), drawn[:, :batch].ravel()),
        met_again=by_chance + (1 - by_chance) * _met_beyond_chance(draw_of, sizes, batch),
        perfect_met_again=by_chance,
    )


def stream_batches(seats: int, shards: int) -> int:
    """Return how many batches of a stream are looked at, as each opens lanes, which put all shards into an
    order of their own."""
    return min(MOST_LANES, MOST_SHARDS // shards) // (2 * seats)


def _met_beyond_chance(draw_of: Callable[[Sequence[int]], Draw], sizes: Sequence[int], batch: int) -> float:
    few = first_shards(sizes, max(MOST, 2 * batch))
    samples, draw = sum(few), draw_of(few)
    starts = 0, -(-samples // batch)
    epochs = [draw(range(start, start + samples // batch)) for start in starts]
    by_chance = (batch - 1) / max(samples - 1, 1)
    found = met_again(epochs[0], epochs[1], batch, samples)
    return (found - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0


def first_shards(sizes: Sequence[int], most: int) -> list[int]:
    """Return the sizes of the first shards that hold at most so many samples, a part of the first if it is
    larger."""
    count = int(np.searchsorted(np.cumsum(sizes), most, side="right"))
    return list(sizes[:count]) or [most]


def neighbour_distance(drawn: Integers, samples: int) -> float:
    """Return the mean distance between neighbours in rows of places, [n, m], over the one that is expected of
    two different samples drawn at random, a third of `samples` + 1."""
    return float(np.abs(np.diff(drawn, axis=1)).mean() / ((samples + 1) / 3)) if samples > 1 else 1.0


def rank_correlation(times: Integers, places: Integers) -> float:
    """Return Spearman's correlation of two arrays of shape [n] without ties."""
    count = len(times)
    apart = (times.argsort().argsort() - places.argsort().argsort()).astype(np.float64)
    return 1 - 6 * float((apart**2).sum()) / (count * (count**2 - 1)) if count > 1 else 0.0


def distinct_shards(batches: Integers, sizes: Sequence[int]) -> float:
    """Return the mean number of different shards in the batches, [n, batch], of places."""
    shards = np.sort(np.searchsorted(np.cumsum(sizes), batches, side="right"), axis=1)
    return float((np.diff(shards, axis=1) > 0).sum(axis=1).mean() + 1)


def perfect_distinct_shards(sizes: Sequence[int], batch: int) -> float:
    """Return the number that is expected of `batch` samples drawn without putting any back: of each shard the
    chance that it is hit, by the hypergeometric distribution."""
    samples, hit = sum(sizes), 0.0
    for size, count in zip(*np.unique(np.array(sizes), return_counts=True), strict=True):
        missed = exp(_choices(samples - int(size), batch) - _choices(samples, batch))
        hit += int(count) * (1 - missed)
    return hit


def met_again(first: Integers, second: Integers, batch: int, samples: int) -> float:
    """Return the share of all pairs in a batch of one epoch that are a pair in the next one as well; both
    are of places, [n], in whole batches."""
    batches = np.full((2, samples), -1)
    for epoch, places in enumerate((first, second)):
        batches[epoch, places] = np.arange(len(places)) // batch
    before, after = batches[:, (batches >= 0).all(axis=0)]
    together = np.unique(before * (after.max(initial=0) + 1) + after, return_counts=True)[1]
    pairs = np.unique(before, return_counts=True)[1]
    possible = int((pairs * (pairs - 1)).sum())
    return float((together * (together - 1)).sum() / possible) if possible else 0.0


def _choices(count: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose so many of `count`."""
    if chosen > count:
        return -inf
    return lgamma(count + 1) - lgamma(chosen + 1) - lgamma(count - chosen + 1)
