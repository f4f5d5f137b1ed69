"""How samples are cut into shards: pure functions from a stream of samples to groups of them.

`by_hash` is a trie over the keys' hash bits: a node that fits is a shard, one that does not is cut by its
next bit. A sample's shard hence depends on its own bits and on how full that corner is, never on history: n
changed samples touch at most n shards, n added or removed at most 2n (more only where a corner splits
repeatedly), and a rebuild equals a build from nothing. The price is shards between half full and full.
`in_order` fills shards one after another, so only appended samples leave the earlier shards alone.

Both hold no more samples than one shard has, whatever their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from tasks.dataset.keys import HASH_BITS

Sample = TypeVar("Sample")


class Weighed(NamedTuple, Generic[Sample]):
    """A sample with its place among all (64 bits) and its weight (samples or bytes)."""

    position: int
    weight: int
    sample: Sample


def by_hash(samples: Iterable[Weighed[Sample]], maximum: int) -> Iterator[list[Sample]]:
    """Groups of samples that come by ascending position, each group at most `maximum` heavy.

    A group of one sample may be heavier, and so may one whose samples share all 64 bits.
    """
    return _Trie(iter(samples), maximum).leaves(0, 0)


class _Trie(Generic[Sample]):
    """Walks the trie depth first with the samples read so far and not given out yet."""

    def __init__(self, samples: Iterator[Weighed[Sample]], maximum: int) -> None:
        self._samples = samples
        self._maximum = maximum
        self._ahead: list[Weighed[Sample]] = []

    def leaves(self, bit: int, prefix: int) -> Iterator[list[Sample]]:
        """The leaves of the node whose positions share the first `bit` bits of `prefix`."""
        stop = prefix + (1 << (HASH_BITS - bit))
        count, fits = self._look(stop, bit == HASH_BITS)
        if not count:
            return
        if fits:
            yield [ahead.sample for ahead in self._ahead[:count]]
            del self._ahead[:count]
            return
        yield from self.leaves(bit + 1, prefix)
        yield from self.leaves(bit + 1, prefix | 1 << (HASH_BITS - 1 - bit))

    def _look(self, stop: int, takes_all: bool) -> tuple[int, bool]:
        """Read until the node is known to be too heavy or to end; its samples so far, and whether it fits."""
        weight = count = 0
        while True:
            if count == len(self._ahead):
                following = next(self._samples, None)
                if following is None:
                    return count, True
                self._ahead.append(following)
            if self._ahead[count].position >= stop:
                return count, True
            weight += self._ahead[count].weight
            count += 1
            if weight > self._maximum and count > 1 and not takes_all:
                return count, False


def in_order(samples: Iterable[Weighed[Sample]], maximum: int) -> Iterator[list[Sample]]:
    """Groups of consecutive samples, each as full as `maximum` allows, at least one sample."""
    group: list[Sample] = []
    weight = 0
    for _, own, sample in samples:
        if group and weight + own > maximum:
            yield group
            group, weight = [], 0
        group.append(sample)
        weight += own
    if group:
        yield group
