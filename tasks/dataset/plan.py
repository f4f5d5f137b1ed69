"""How samples are cut into shards: pure functions from positions and weights to ranges.

`by_hash` is a trie over the keys' hash bits: a node that fits is a shard, one that does not is cut by its
next bit. A sample's shard hence depends on its own bits and on how full that corner is, never on history: n
changed samples touch at most n shards, n added or removed at most 2n (more only where a corner splits
repeatedly), and a rebuild equals a build from nothing. The price is shards between half full and full.
`in_order` fills shards one after another, so only appended samples leave the earlier shards alone.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tasks.dataset.keys import HASH_BITS

Positions = NDArray[np.uint64]
Weights = NDArray[np.int64]


def by_hash(positions: Positions, weights: Weights, maximum: int) -> list[tuple[int, int]]:
    """Ranges [start, stop) over `positions` (u64, ascending), each at most `maximum` heavy.

    A range of one sample may be heavier, and so may one whose samples share all 64 bits.
    """
    total = np.concatenate([[0], np.cumsum(weights)])

    def leaves(start: int, stop: int, bit: int, prefix: int) -> Iterator[tuple[int, int]]:
        if start == stop:
            return
        if stop - start == 1 or total[stop] - total[start] <= maximum or bit == HASH_BITS:
            yield start, stop
            return
        upper = prefix | 1 << (HASH_BITS - 1 - bit)
        middle = start + int(np.searchsorted(positions[start:stop], np.uint64(upper)))
        yield from leaves(start, middle, bit + 1, prefix)
        yield from leaves(middle, stop, bit + 1, upper)

    return list(leaves(0, len(positions), 0, 0))


def in_order(weights: Weights, maximum: int) -> list[tuple[int, int]]:
    """Ranges [start, stop) of consecutive samples, each as full as `maximum` allows, at least one sample."""
    total = np.concatenate([[0], np.cumsum(weights)])
    ranges = []
    start = 0
    while start < len(weights):
        stop = int(np.searchsorted(total, total[start] + maximum, side="right")) - 1
        stop = max(stop, start + 1)
        ranges.append((start, stop))
        start = stop
    return ranges
