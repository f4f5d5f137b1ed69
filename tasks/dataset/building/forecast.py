"""Forecasts a build without doing it: why it is needed, and its samples, shards, bytes and time.

The sources are listed once into a temporary folder, so nothing in the dataset changes. Of a sequential source
only the containers are listed, not read. Size and time come from converting TRIED evenly spread samples.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.core.screen import Progress, no_progress
from tasks.dataset import layout
from tasks.dataset.build_info import read_build_info
from tasks.dataset.building.catalogue import Catalogue
from tasks.dataset.building.changes import since
from tasks.dataset.building.convert import Converter, converter
from tasks.dataset.building.fingerprint import another_converter, config_digest
from tasks.dataset.building.freshness import is_for_the_same, unchanged
from tasks.dataset.building.listing import SourceListing
from tasks.dataset.building.shard_plan import PlannedShard
from tasks.dataset.building.staging import known_shards, write_rules
from tasks.dataset.building.tally import counted
from tasks.dataset.manifest import read_manifest
from tasks.dataset.sources.protocol import is_by_row
from tasks.dataset.tar.writer import ShardWriter

TRIED = 20


@dataclass(frozen=True)
class ConversionWork:
    """What is to be converted, by the listing of the sources. `bytes` and `seconds` are for one process, and
    `tried_rejects` holds an example of each reason among the samples that were tried."""

    listed: int
    filtered: int
    rejected: Mapping[str, int]
    rejected_examples: Mapping[str, str]
    passed_over: Mapping[str, int]
    shards: int
    to_convert: int
    to_convert_shards: int
    bytes: int
    seconds: float
    tried: int
    taken: int
    """How many of the tried samples are accepted."""
    tried_rejects: Mapping[str, str]
    tried_reasons: Mapping[str, int]
    """How many of the tried samples are rejected, by reason."""
    stops: str | None
    """Why the build would stop, as far as that is known without converting everything."""


@dataclass(frozen=True)
class Forecast:
    """What `tarmac build` would do.

    `up_to_date` is the version that already equals what the build would make. `containers` and `read_bytes`
    are what the build will read of sequential sources; their samples are unknown before, so `work` is None
    then. `free_bytes` is the free space on the output's disk.
    """

    up_to_date: str | None
    why: str | None
    containers: int
    read_bytes: int
    free_bytes: int
    work: ConversionWork | None
    doubts: Sequence[str] = ()
    """Probable mistakes in the config."""


def forecast(config: Config, progress: Progress = no_progress) -> Forecast:
    """Forecast the build of a config; UsageError and DataError as the build would raise them."""
    before = layout.linked(config.dataset.output)
    with (
        tempfile.TemporaryDirectory(prefix="tarmac-plan-") as folder,
        closing(SourceListing(config, Path(folder), progress)) as listing,
    ):
        output = config.dataset.output.absolute()
        existing = next(path for path in (output, *output.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        listing.survey()
        inputs = listing.inputs_digest
        if before is not None and unchanged(before, inputs, config.dataset):
            return Forecast(before.name, None, 0, 0, free, None)
        if listing.has_containers:
            sizes = [max(one.stat.size, 0) for _, one in listing.catalogue.containers(are_read=False)]
            why = _why(config, before, inputs, "a container of the source has changed, come or gone")
            return Forecast(None, why, len(sizes), sum(sizes), free, None, listing.doubts())
        listing.read(forecasts=True)
        work = _work(config, before, listing.catalogue)
    changed = "samples have changed, come or gone" if work.to_convert else "samples have gone"
    return Forecast(None, _why(config, before, inputs, changed), 0, 0, free, work)


def _why(config: Config, before: Path | None, inputs: str, changed: str) -> str:
    """Return why there is something to build; `changed` is the reason if the listing differs."""
    if before is None:
        return "there is no version yet"
    if otherwise := another_converter(before):
        return otherwise
    try:
        if read_manifest(before).config_digest != config_digest(config.dataset):
            return "the dataset block of the config has changed"
        info = read_build_info(before)
        if not is_for_the_same(info, config.dataset):
            return "dataset.private or dataset.license has changed"
        is_same = info.inputs_digest == inputs
    except DataError:
        is_same = True
    return "the current version is damaged, or a sample could not be read for it" if is_same else changed


def _work(config: Config, before: Path | None, catalogue: Catalogue) -> ConversionWork:
    """Count what is planned, and try a few of the samples that are to be converted."""
    dataset, staging = config.dataset, catalogue.path.parent
    known = known_shards(dataset.output, catalogue)
    missing = [shard for shard in catalogue.shards() if shard.ordinal not in known]
    to_convert = sum(shard.samples for shard in missing)
    ranks = spread(missing, TRIED)
    size, seconds, taken, rejects, reasons = _try(
        catalogue, converter(staging, write_rules(staging, dataset)), ranks
    )
    share = to_convert / max(len(ranks), 1)
    return ConversionWork(
        listed=catalogue.read,
        filtered=catalogue.filtered,
        rejected=catalogue.reasons(),
        rejected_examples=catalogue.examples(),
        passed_over=catalogue.fact("passed_over") or {},
        shards=len(known) + len(missing),
        to_convert=to_convert,
        to_convert_shards=len(missing),
        bytes=round(size * share),
        seconds=seconds * share,
        tried=len(ranks),
        taken=taken,
        tried_rejects=rejects,
        tried_reasons=reasons,
        stops=_stops(config, before, catalogue),
    )


def spread(shards: Sequence[PlannedShard], count: int) -> list[int]:
    """Return the ranks of at most `count` samples, spread over these shards."""
    chosen = shards[:: max(1, len(shards) // count)][:count]
    each = count // max(1, len(chosen))
    return [rank for shard in chosen for rank in range(shard.start, min(shard.start + each, shard.stop))]


def _stops(config: Config, before: Path | None, catalogue: Catalogue) -> str | None:
    if not catalogue.accepted:
        return "no sample is left; loosen dataset.filter or mend the source"
    tally = counted(config, catalogue)
    if tally.is_exceeded:
        return tally.explanation
    try:
        since(before, catalogue, config.dataset).check(before, config.dataset.private)
    except DataError as error:
        return str(error)
    return None


def _try(
    catalogue: Catalogue, work: Converter, ranks: list[int]
) -> tuple[int, float, int, dict[str, str], dict[str, int]]:
    """Convert these entries. Returns their bytes and seconds, how many are accepted, and for each reject
    reason an example and a count."""
    entries = [entry for rank in ranks for entry in catalogue.entries(rank, rank + 1)]
    fetched = [entry for entry in entries if is_by_row(entry.stamp)]
    work.announce([*fetched, *fetched])
    with ShardWriter(work.staging / "tried.tar") as writer:
        for entry in fetched or entries[:1]:
            work.convert(writer, entry)  # so that neither imports nor the network are timed
        began, before = time.perf_counter(), writer.size_bytes
        outcomes = [work.convert(writer, entry) for entry in entries]
        took, size = time.perf_counter() - began, writer.size_bytes - before
    rejects = {
        str(one.reject.reason): f"{one.entry.place}: {one.reject.detail}" for one in outcomes if one.reject
    }
    reasons = Counter(str(one.reject.reason) for one in outcomes if one.reject)
    return size, took, len(outcomes) - reasons.total(), rejects, dict(reasons)
