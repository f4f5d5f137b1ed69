"""Cuts samples into shards: pure functions from a stream of samples to planned shards.

`by_hash` is a trie over the bits of the keys' hashes: a node that fits is a shard, one that does not is cut
by its next bit. So a sample's shard depends on its own bits and on how full its corner is, never on history:
n changed samples touch at most n shards, n added or removed ones at most 2n (more only if a corner splits
repeatedly), and a rebuild equals a build from nothing. The price is that shards are between half full and
full. `in_order` fills one shard after another, so only appended samples leave earlier shards unchanged.

Both hold no more samples in memory than one shard has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from blake3 import blake3

from tasks.core.schema.dataset import ShardRules
from tasks.dataset.keys import HASH_BITS
from tasks.dataset.tar.format import END

Sample = TypeVar("Sample")
Weighed: TypeAlias = tuple[int, int, Sample]
"""A sample preceded by its shard hash (64 bits, which order all samples) and its weight (samples or
bytes)."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """The samples of ranks `start` to before `stop`, and the digest of all that shapes the shard's bytes.

    Ranks count from 1 over all splits, ordinals from 0.
    """

    ordinal: int
    split: str
    start: int
    stop: int
    digest: str

    @property
    def samples(self) -> int:
        return self.stop - self.start


def plan_shards(
    splits: Iterable[tuple[str, Iterable[Weighed[bytes]]]], rules: ShardRules, rules_digest: str
) -> Iterator[PlannedShard]:
    """Yield the shards of all splits. A sample is its identity here, and samples come in the order of
    `rules.order`."""
    cut = by_hash if rules.order == "hash" else in_order
    maximum = rules.samples or 0
    if rules.bytes is not None:
        maximum = max(rules.bytes - len(END), 0)
    ordinal = 0
    start = 1
    for split, samples in splits:
        for group in cut(samples, maximum):
            digest = blake3(b"\n".join([rules_digest.encode(), *group])).hexdigest(DIGEST_BYTES)
            yield PlannedShard(ordinal, split, start, start + len(group), digest)
            ordinal += 1
            start += len(group)


def by_hash(samples: Iterable[Weighed[Sample]], maximum: int) -> Iterator[list[Sample]]:
    """Yield groups of samples, which come by ascending shard hash; each group weighs at most `maximum`.

    A single sample may weigh more, and so may a group whose samples share all 64 bits.
    """
    return _Trie(iter(samples), maximum).groups(0, 0)


class _Trie(Generic[Sample]):
    """Walks the trie depth first, and holds the samples that are read but not yet in a group."""

    def __init__(self, samples: Iterator[Weighed[Sample]], maximum: int) -> None:
        self._samples = samples
        self._maximum = maximum
        self._ahead: list[Weighed[Sample]] = []

    def groups(self, bit: int, prefix: int) -> Iterator[list[Sample]]:
        """Yield the groups of the node whose hashes share the first `bit` bits of `prefix`."""
        stop = prefix + (1 << (HASH_BITS - bit))
        count, fits = self._look(stop, bit == HASH_BITS)
        if not count:
            return
        if fits:
            yield [sample for _, _, sample in self._ahead[:count]]
            del self._ahead[:count]
            return
        yield from self.groups(bit + 1, prefix)
        yield from self.groups(bit + 1, prefix | 1 << (HASH_BITS - 1 - bit))

    def _look(self, stop: int, takes_all: bool) -> tuple[int, bool]:
        """Read until the node ends or is too heavy; return the number of its samples so far, and whether it
        fits."""
        total = count = 0
        ahead = self._ahead
        while True:
            if count == len(ahead):
                following = next(self._samples, None)
                if following is None:
                    return count, True
                ahead.append(following)
            shard_hash, weight, _ = ahead[count]
            if shard_hash >= stop:
                return count, True
            total += weight
            count += 1
            if total > self._maximum and count > 1 and not takes_all:
                return count, False


def in_order(samples: Iterable[Weighed[Sample]], maximum: int) -> Iterator[list[Sample]]:
    """Yield groups of consecutive samples, each as full as `maximum` allows and at least one sample."""
    group: list[Sample] = []
    total = 0
    for _, weight, sample in samples:
        if group and total + weight > maximum:
            yield group
            group, total = [], 0
        group.append(sample)
        total += weight
    if group:
        yield group
