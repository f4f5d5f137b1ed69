"""What a build would do, found out without doing it: samples, shards, bytes, time and why.

The sources are listed once, into a temporary folder, so nothing beside the dataset changes. A sequential
source is not read for it: only its containers are known. Size and time come from converting TRIED samples
spread over all.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.dataset import layout
from tasks.dataset.build.budget import Budget
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.changes import since
from tasks.dataset.build.check import check
from tasks.dataset.build.convert import Converter, converter
from tasks.dataset.build.fingerprint import config_digest, rules_digest, source_digests
from tasks.dataset.build.freshness import unchanged
from tasks.dataset.build.listing import Listing
from tasks.dataset.build.reuse import known_shards
from tasks.dataset.build.shard_plan import PlannedShard
from tasks.dataset.build.staging import write_rules
from tasks.dataset.build_info import read_build_info
from tasks.dataset.manifest import read_manifest
from tasks.dataset.sources import Source
from tasks.dataset.tar.writer import ShardWriter

TRIED = 20


@dataclass(frozen=True)
class Work:
    """What is to be converted, known from listing the sources: `bytes` and `seconds` are for one process, and
    `tried_rejects` holds an example of each reason among the samples that were tried."""

    listed: int
    filtered: int
    rejected: Mapping[str, int]
    shards: int
    to_convert: int
    to_convert_shards: int
    bytes: int
    seconds: float
    tried: int
    tried_rejects: Mapping[str, str]
    stops: str | None
    """Why the build would stop, as far as that shows without converting all."""


@dataclass(frozen=True)
class Forecast:
    """What `tarmac build` would do.

    `up_to_date` is the version that already is what the build would make. Of sequential sources
    `containers` and `read_bytes` tell what will be read; what is in them shows only then, so `work` is None.
    `free_bytes` is the room on the output's disk.
    """

    up_to_date: str | None
    why: str | None
    containers: int
    read_bytes: int
    free_bytes: int
    work: Work | None


def forecast(config: Config, progress: Progress = no_progress) -> Forecast:
    """UsageError and DataError as the build would raise them."""
    sources = check(config.dataset)
    before = layout.linked(config.dataset.output)
    free = _room(config.dataset.output)
    with tempfile.TemporaryDirectory(prefix="tarmac-plan-") as folder:
        listing = Listing(config, sources, Path(folder), progress)
        listing.survey()
        inputs = listing.inputs_digest
        with closing(listing.catalogue) as catalogue:
            if before is not None and unchanged(before, inputs, config.dataset):
                return Forecast(before.name, None, 0, 0, free, None)
            if listing.has_containers:
                sizes = [max(one.stat.size, 0) for _, one in catalogue.containers(are_read=False)]
                why = _why(config, before, inputs, "a container of the source has changed, come or gone")
                return Forecast(None, why, len(sizes), sum(sizes), free, None)
            listing.read()
            work = _work(config, before, catalogue, sources)
    changed = "samples have changed, come or gone" if work.to_convert else "samples have gone"
    return Forecast(None, _why(config, before, inputs, changed), 0, 0, free, work)


def _room(output: Path) -> int:
    """Free bytes on the disk that the folder is or will be on."""
    there = (path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    return shutil.disk_usage(next(there)).free


def _why(config: Config, before: Path | None, inputs: str, changed: str) -> str:
    """Why there is something to do."""
    if before is None:
        return "there is no version yet"
    try:
        if read_manifest(before).config_digest != config_digest(config.dataset):
            return "the dataset block of the config has changed"
        is_same = read_build_info(before).inputs_digest == inputs
    except DataError:
        is_same = True
    return "the current version is damaged, or a sample could not be read for it" if is_same else changed


def _work(config: Config, before: Path | None, catalogue: Catalogue, sources: Sequence[Source]) -> Work:
    """Plan all shards and try a few samples of those that are to be converted."""
    dataset, staging = config.dataset, catalogue.path.parent
    with catalogue.transaction():
        catalogue.plan(dataset.shard, rules_digest(dataset), source_digests(dataset, sources))
    known = known_shards(dataset.output, catalogue)
    missing = [shard for shard in catalogue.shards() if shard.ordinal not in known]
    to_convert = sum(shard.samples for shard in missing)
    ranks = spread(missing, TRIED)
    size, seconds, rejects = _try(catalogue, converter(staging, write_rules(staging, dataset)), ranks)
    share = to_convert / max(len(ranks), 1)
    return Work(
        listed=catalogue.read,
        filtered=catalogue.filtered,
        rejected=catalogue.reasons(),
        shards=len(known) + len(missing),
        to_convert=to_convert,
        to_convert_shards=len(missing),
        bytes=round(size * share),
        seconds=seconds * share,
        tried=len(ranks),
        tried_rejects=rejects,
        stops=_stops(config, before, catalogue),
    )


def spread(shards: Iterable[PlannedShard], count: int) -> list[int]:
    """The ranks of at most `count` samples, evenly spread over these shards."""
    chosen = list(shards)
    ends = list(accumulate(shard.samples for shard in chosen))
    total = ends[-1] if ends else 0
    ranks = []
    for number in range(min(count, total)):
        place = number * total // min(count, total)
        shard = bisect_right(ends, place)
        ranks.append(chosen[shard].stop - (ends[shard] - place))
    return ranks


def _stops(config: Config, before: Path | None, catalogue: Catalogue) -> str | None:
    if not catalogue.accepted:
        return "no sample is left; loosen dataset.filter or mend the source"
    budget = Budget(catalogue.read, config.dataset.reject_budget)
    budget.add(catalogue.reasons())
    if budget.is_exceeded:
        total = budget.counts.total()
        return (
            f"{total:,} of {budget.read:,} are rejected, more than dataset.reject_budget ({budget.share:.1%})"
        )
    try:
        since(before, catalogue).check(before)
    except DataError as error:
        return str(error)
    return None


def _try(catalogue: Catalogue, work: Converter, ranks: list[int]) -> tuple[int, float, dict[str, str]]:
    """Bytes and seconds of converting these entries, and the rejects among them with their details."""
    entries = [entry for rank in ranks for entry in catalogue.between(rank, rank + 1)]
    with ShardWriter(work.staging / "tried.tar") as writer:
        for entry in entries[:1]:
            work.convert(writer, entry)  # imports what it needs
        began, before = time.perf_counter(), writer.size_bytes
        outcomes = [work.convert(writer, entry) for entry in entries]
        took, size = time.perf_counter() - began, writer.size_bytes - before
    rejects = {
        str(one.reject.reason): f"{one.entry.place}: {one.reject.detail}" for one in outcomes if one.reject
    }
    return size, took, rejects
