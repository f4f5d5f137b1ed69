"""Single shards converted again from their source, by the keys of their samples: what a repair needs of a
build.

The source is listed once, for these samples alone; each named shard is then converted as in a build. Whether
the result is what the shard was is for the caller to prove, by its BLAKE3 or sample by sample.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.dataset.build.budget import Budget
from tasks.dataset.build.catalogue import Rejected
from tasks.dataset.build.check import check
from tasks.dataset.build.convert import Tally, convert_all
from tasks.dataset.build.listing import Listing
from tasks.dataset.build.staging import staged_shard, write_rules


@dataclass(frozen=True)
class NamedShards:
    """A listing of the samples that named shards need.

    `missing` are the keys that no sample of the source has, or that dataset.filter leaves out now; `refused`
    the samples that cannot be taken, before any was converted.
    """

    config: Config
    staging: Path
    rules: str
    missing: Sequence[str]
    refused: Mapping[str, Rejected]
    listing: Listing

    def convert(self, progress: Progress = no_progress) -> Iterator[tuple[str, Any, Path | None]]:
        """Convert the samples that were found, shard by shard; each shard's name, its sidecar, a row per
        sample in the order of the keys, and its tar unless every sample of it was rejected."""
        with closing(self.listing.catalogue) as catalogue:
            tally = Tally(Budget(catalogue.accepted, 1.0), catalogue.accepted)
            ordinals = range(catalogue.planned)
            with closing(
                convert_all(self.config, catalogue, self.rules, ordinals, tally, progress)
            ) as converted:
                for ordinal in converted:
                    shard = staged_shard(self.staging, catalogue.shard(ordinal))
                    yield shard.split, shard.sidecar, shard.tar


def list_named(
    config: Config,
    wanted: Mapping[str, Sequence[str]],
    staging: Path,
    progress: Progress = no_progress,
    containers: Collection[str] | None = None,
) -> NamedShards:
    """List the samples of shards, given as keys by shard name (`train/000007.tar`), into the folder
    `staging`, which the caller has made and removes. Of sequential sources only `containers` are read, where
    they are given. UsageError and DataError as a build's listing raises them."""
    sources = check(config.dataset)
    rules = write_rules(staging, config.dataset)
    keys = {key for some in wanted.values() for key in some}
    listing = Listing(config, sources, staging, progress, keys, containers)
    listing.survey(anew=True)
    listing.read()
    catalogue = listing.catalogue
    with catalogue.transaction():
        missing = catalogue.select(wanted)
    refused = {one.key: one for one in catalogue.rejects() if one.key in keys}
    if config.engine.build.kind != "local":
        catalogue.flush()
    return NamedShards(config, staging, rules, missing, refused, listing)
