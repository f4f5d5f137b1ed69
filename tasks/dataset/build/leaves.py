"""The planned shards: which listed samples go into each, in which order, and the digest that names it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from tasks.core.schema import Dataset
from tasks.dataset.build import shard_plan as plan
from tasks.dataset.build.catalogue import Catalogue, Leaf
from tasks.dataset.build.entries import Identity
from tasks.dataset.build.fingerprint import rules_digest, source_digests
from tasks.dataset.tar.writer import END


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
    start = 1
    shard = dataset.shard
    cut = plan.by_hash if shard.order == "hash" else plan.in_order
    maximum = shard.samples or 0
    if shard.bytes is not None:
        maximum = max(shard.bytes - len(END), 0)
    for split in catalogue.splits():
        for group in cut(catalogue.sorted_samples(split), maximum):
            yield Leaf(ordinal, split, start, start + len(group), digests.of(group))
            ordinal += 1
            start += len(group)


@dataclass(frozen=True)
class _Digests:
    """Names leaves by what shapes their bytes: the rules, each sample, and the source that it comes from."""

    rules: str
    sources: Sequence[str]

    def of(self, samples: Sequence[Identity]) -> str:
        running = blake2b(self.rules.encode(), digest_size=16)
        lines = [
            f"{self.sources[source]}\0{key}\0{original_key}\0{file}\0{size}\0{stamp}\0{content}\0{group}\n"
            for source, key, original_key, file, size, stamp, content, group in samples
        ]
        running.update("".join(lines).encode("utf-8", "surrogatepass"))
        return running.hexdigest()
