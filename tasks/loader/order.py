"""Which sample stands at which position of the endless sequence that training reads.

The sequence is the concatenation of epochs, and each epoch holds every sample once. Every order is computed
per position in constant memory: resuming needs the position and nothing else, and 10^9 samples cost no more
than ten. All functions are plain functions from arrays to arrays. The price compared with a shuffled list is
some microseconds of arithmetic per sample, far below the cost of decoding it.

The permutations are Feistel networks with cycle walking (Black and Rogaway, Ciphers with Arbitrary Finite
Domains, CT-RSA 2002), keyed by the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). They are not
ciphers that keep a secret: they only have to look random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import UsageError

Integers = NDArray[np.int64]
Keys = NDArray[np.uint64]
Shuffle = Literal["windows", "samples", "none"]

ROUNDS = 8
WINDOW = 4096
"""The most samples that are shuffled together."""
WINDOW_BYTES = 2 << 30
"""The most bytes that a window reads from: a stretch that a page cache keeps while it is read in any order.
"""
OPEN_SHARDS = 64
"""Shards that a process keeps open; a window spans less than half of them, as one window ends while the next
begins."""
GOLDEN = 0x9E3779B97F4A7C15
WORD = 0xFFFFFFFFFFFFFFFF
MIXED = 1000
"""Neighbouring positions that several datasets share exactly by their weights."""
TRIES = 16
"""Samples that are drawn in place of a bad one, in case they are bad as well."""
ORDER, WITHIN, SHIFT, AUGMENT, STAND_IN, MIX = range(6)
"""What a key is for, so that no two uses share their random numbers."""


class Order(Protocol):
    """One way to go through the samples of every epoch."""

    def indices(self, positions: Integers, count: int, seed: int) -> Integers:
        """Return the sample, in 0..count-1, at each position >= 0; both of shape [n]."""
        ...


@dataclass(frozen=True)
class Storage:
    """The samples in the order of the shards, in every epoch."""

    def indices(self, positions: Integers, count: int, seed: int) -> Integers:
        return positions % count


@dataclass(frozen=True)
class Samples:
    """A new permutation of all samples in every epoch: for storage where seeking costs nothing."""

    def indices(self, positions: Integers, count: int, seed: int) -> Integers:
        epochs, offsets = np.divmod(positions, count)
        return permute(offsets, count, _keys(seed, ORDER, epochs))


@dataclass(frozen=True)
class Windows:
    """Windows of `size` neighbouring samples in a random order, shuffled within.

    Reads stay inside one stretch of the shards at a time, which suits disks and page caches. The windows are
    cut at another place in every epoch, so that samples do not always meet the same others.
    """

    size: int = WINDOW

    @classmethod
    def fitting(cls, samples: int, shards: int, sample_bytes: float) -> Windows:
        """Return the largest windows that keep to WINDOW_BYTES and OPEN_SHARDS where so many samples, of that
        mean size, lie in so many shards: CT shards may hold sixteen samples, or two."""
        by_shards = (OPEN_SHARDS // 2 - 1) * samples // shards
        return cls(max(min(WINDOW, by_shards, int(WINDOW_BYTES / max(sample_bytes, 1))), 1))

    def indices(self, positions: Integers, count: int, seed: int) -> Integers:
        epochs, offsets = np.divmod(positions, count)
        size = min(self.size, count)
        windows = -(-count // size)
        last = count - (windows - 1) * size
        order = _keys(seed, ORDER, epochs)
        # The last window is short. Where it stands in this epoch's order follows from the inverse; what comes
        # after it is numbered as if it were full.
        place = invert(np.full_like(offsets, windows - 1), windows, order)
        offsets = np.where(offsets >= place * size + last, offsets + (size - last), offsets)
        slots, within = np.divmod(offsets, size)
        window = permute(slots, windows, order)
        keys = _mix(order ^ _keys(seed, WITHIN, window))
        short = window == windows - 1
        within[short] = permute(within[short], last, keys[short])
        within[~short] = permute(within[~short], size, keys[~short])
        shift = (_keys(seed, SHIFT, epochs) % np.uint64(count)).astype(np.int64)
        return (window * size + within + shift) % count


def order_of(shuffle: Shuffle, samples: int, shards: int, sample_bytes: float) -> Order:
    """Return the order that `loader.shuffle` of the config asks for, for a split of that shape."""
    orders: Mapping[Shuffle, Order] = {
        "windows": Windows.fitting(samples, shards, sample_bytes),
        "samples": Samples(),
        "none": Storage(),
    }
    return orders[shuffle]


def sample_seeds(positions: Integers, seed: int) -> Integers:
    """Return a 63-bit seed for the augmentation at each position; positions count on through the epochs."""
    return (_keys(seed, AUGMENT, positions) >> np.uint64(1)).astype(np.int64)


def stand_ins(position: int, count: int, seed: int) -> list[int]:
    """Return TRIES samples, in 0..count-1, to try in this order in place of a bad one."""
    draws = np.arange(position * TRIES, (position + 1) * TRIES)
    drawn: list[int] = (_keys(seed, STAND_IN, draws) % np.uint64(count)).tolist()
    return drawn


def portions(weights: Sequence[float]) -> list[int]:
    """Return each dataset's share of MIXED positions, by the largest remainders; UsageError where a share is
    zero."""
    shares = np.array(weights, np.float64) / sum(weights) * MIXED
    counts = np.floor(shares).astype(np.int64)
    counts[np.argsort(counts - shares, kind="stable")[: MIXED - counts.sum()]] += 1
    if not counts.all():
        raise UsageError(
            f"train.data: a weight of {weights[int(np.argmin(counts))]:g} is less than a thousandth of all; "
            "raise it, or leave the dataset out"
        )
    found: list[int] = counts.tolist()
    return found


def mix(positions: Integers, counts: Sequence[int], seed: int) -> tuple[Integers, Integers]:
    """Return which dataset stands at each position, and at which position of that dataset's own endless
    sequence.

    Each MIXED positions hold `counts` (which add up to that) of the datasets, in an order of their own.
    Within a dataset the positions count on without gaps, so it is read as it would be alone, and each of its
    epochs holds each of its samples once. All arrays are of shape [n].
    """
    labels = np.repeat(np.arange(len(counts)), counts)
    blocks, offsets = np.divmod(positions, MIXED)
    which, own = np.empty_like(positions), np.empty_like(positions)
    for block in np.unique(blocks):
        mixed = labels[permute(np.arange(MIXED), MIXED, _keys(seed, MIX, np.full(MIXED, block)))]
        before = np.stack([np.cumsum(mixed == number) - 1 for number in range(len(counts))])
        here = np.flatnonzero(blocks == block)
        which[here] = mixed[offsets[here]]
        own[here] = block * np.array(counts)[which[here]] + before[which[here], offsets[here]]
    return which, own


def rank_positions(step: int, batch_size: int, rank: int, world_size: int) -> range:
    """Return the positions that one rank reads for a step, whose global batch has `batch_size` samples. The
    ranks' slices are even, do not overlap and make up [step * batch_size, (step + 1) * batch_size)."""
    if batch_size % world_size:
        raise UsageError(
            f"train.batch_size: {batch_size} samples do not divide evenly among {world_size} ranks; "
            f"take {max(batch_size // world_size, 1) * world_size}"
        )
    share = batch_size // world_size
    start = step * batch_size + rank * share
    return range(start, start + share)


def permute(values: Integers, count: int, keys: Keys | int) -> Integers:
    """Return the image of each value in 0..count-1 under the permutation of 0..count-1 that its key names.
    `values` has shape [n]; `keys` is one seed for all, or an array of shape [n]."""
    return _walk(values, count, keys, forward=True)


def invert(values: Integers, count: int, keys: Keys | int) -> Integers:
    """Return the inverse of `permute`."""
    return _walk(values, count, keys, forward=False)


def _walk(values: Integers, count: int, keys: Keys | int, forward: bool) -> Integers:
    """Apply the network, and again to whatever falls outside of 0..count-1: at most twice on average."""
    if count == 1:
        return np.zeros_like(values)
    if isinstance(keys, int):
        keys = _keys(keys, ORDER, np.zeros_like(values))
    bits = max((count - 1).bit_length(), 2)
    result = _feistel(values.astype(np.uint64), bits, keys, forward)
    outside = np.flatnonzero(result >= count)
    while outside.size:
        result[outside] = _feistel(result[outside], bits, keys[outside], forward)
        outside = outside[result[outside] >= count]
    return result.astype(np.int64)


def _feistel(values: Keys, bits: int, keys: Keys, forward: bool) -> Keys:
    """Return a permutation of 0..2^bits-1. With an odd number of bits the halves differ by one bit and take
    turns."""
    low = np.uint64(bits - bits // 2)
    masks = [np.uint64((1 << (bits // 2)) - 1), np.uint64((1 << int(low)) - 1)]
    left, right = values >> low, values & masks[1]
    for number in range(ROUNDS) if forward else reversed(range(ROUNDS)):
        key = keys + np.uint64((number + 1) * GOLDEN & WORD)
        mask = masks[number % 2]
        if forward:
            left, right = right, left ^ (_mix(right ^ key) >> np.uint64(32) & mask)
        else:
            left, right = right ^ (_mix(left ^ key) >> np.uint64(32) & mask), left
    return left << low | right


def _keys(seed: int, use: int, numbers: Integers) -> Keys:
    """Return a key of 64 bits for each number; different seeds and uses give unrelated keys."""
    base = _mix(np.array([seed & WORD], np.uint64)) + np.uint64((use + 1) * GOLDEN & WORD)
    return _mix(_mix(base) ^ (numbers.astype(np.uint64) * np.uint64(GOLDEN)))


def _mix(values: Keys) -> Keys:
    """Return the finalizer of SplitMix64: a bijection of 64-bit words in which every bit depends on every
    other."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
