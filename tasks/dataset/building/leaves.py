"""The planned shards: which listed samples go into each, in which order, and the digest that names it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from tasks.core.schema import Dataset
from tasks.dataset.building import plan
from tasks.dataset.building.catalogue import Catalogue, Leaf
from tasks.dataset.building.entries import Entry
from tasks.dataset.building.fingerprint import rules_digest, source_digests
from tasks.dataset.tar import END


def plan_leaves(catalogue: Catalogue, dataset: Dataset) -> None:
    """Write all leaves into a sorted catalogue, unless a killed build has."""
    if catalogue.fact("planned"):
        return
    digests = _Digests(rules_digest(dataset), source_digests(dataset))
    with catalogue.transaction():
        catalogue.add_leaves(_leaves(catalogue, dataset, digests))
        catalogue.note("planned", True)


def _leaves(catalogue: Catalogue, dataset: Dataset, digests: _Digests) -> Iterator[Leaf]:
    ordinal = 0
    shard = dataset.shard
    cut = plan.by_hash if shard.order == "hash" else plan.in_order
    maximum = shard.samples or 0
    if shard.bytes is not None:
        maximum = max(shard.bytes - len(END), 0)
    for split in catalogue.splits():
        for group in cut(catalogue.sorted_samples(split), maximum):
            ranks = [rank for rank, _ in group]
            digest = digests.of([entry for _, entry in group])
            yield Leaf(ordinal, split, ranks[0], ranks[-1] + 1, digest)
            ordinal += 1


@dataclass(frozen=True)
class _Digests:
    """Names leaves by what shapes their bytes: the rules, each sample, and the source that it comes from."""

    rules: str
    sources: Sequence[str]

    def of(self, entries: Sequence[Entry]) -> str:
        running = blake2b(self.rules.encode(), digest_size=16)
        for entry in entries:
            facts = (self.sources[entry.source], *entry.identity)
            running.update("\0".join(map(str, facts)).encode("utf-8", "surrogatepass") + b"\n")
        return running.hexdigest()
