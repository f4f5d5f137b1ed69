"""The planned shards: which listed samples go into each, in which order, and the digest that names it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby

import numpy as np

from tasks.core.schema import Dataset
from tasks.dataset import plan
from tasks.dataset.fingerprint import rules_digest
from tasks.dataset.keys import position
from tasks.dataset.listing import Entry, Listing
from tasks.dataset.sources import Source, open_sources
from tasks.dataset.tar import END


@dataclass(frozen=True, slots=True)
class Leaf:
    """One planned shard. `digest` covers its samples as listed and all rules that shape their bytes."""

    split: str
    entries: tuple[Entry, ...]
    digest: str


def plan_leaves(listing: Listing, dataset: Dataset) -> list[Leaf]:
    """All leaves, split by split in the order of their names, in shard order within."""
    sources = open_sources(dataset)
    rules = rules_digest(dataset) + "".join(f"\0{source.root}" for source in sources)
    leaves = []
    for split, members in groupby(sorted(listing.entries, key=_by_split), key=_by_split):
        entries = list(members)
        for start, stop in _cut(entries, dataset, sources):
            chosen = tuple(entries[start:stop])
            leaves.append(Leaf(split, chosen, _digest(rules, chosen)))
    return leaves


def _by_split(entry: Entry) -> str:
    return entry.split


def _cut(entries: list[Entry], dataset: Dataset, sources: Sequence[Source]) -> list[tuple[int, int]]:
    """Sort the split's entries into shard order, in place, and cut them into ranges."""
    shard = dataset.shard
    if shard.order == "hash":
        entries.sort(key=lambda entry: (position(entry.key), entry.key))
    weights = np.ones(len(entries), np.int64)
    maximum = shard.samples or 0
    if shard.bytes is not None:
        maximum = max(shard.bytes - len(END), 0)
        sizes = (sources[one.source].stored_bytes(one.file, one.size, one.content) for one in entries)
        weights = np.fromiter(sizes, np.int64, len(entries))
    if shard.order == "source":
        return plan.in_order(weights, maximum)
    positions = np.fromiter((position(entry.key) for entry in entries), np.uint64, len(entries))
    return plan.by_hash(positions, weights, maximum)


def _digest(rules: str, entries: tuple[Entry, ...]) -> str:
    running = blake2b(rules.encode("utf-8", "surrogatepass"), digest_size=16)
    for entry in entries:
        running.update("\0".join(map(str, entry.identity)).encode("utf-8", "surrogatepass") + b"\n")
    return running.hexdigest()
