"""Forecasts a build without doing it: why it is needed, and its samples, shards, bytes and time.

The sources are listed once into a temporary folder, so nothing in the dataset changes. Size and time come
from converting TRIED samples. Where samples have files of their own, these are spread evenly. A sequential
source is not read for a forecast: the first of each source are tried, and the number of all is what the
containers state, or an estimate by the size of the first.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError
from tasks.core.schema import Config
from tasks.core.schema.dataset import CONTENT
from tasks.core.screen import Progress, no_progress
from tasks.core.units import counted as counted_text
from tasks.core.units import size as size_text
from tasks.dataset.building.changes import since
from tasks.dataset.building.content_groups import moves_of
from tasks.dataset.building.conversion.convert import Converter, converter
from tasks.dataset.building.conversion.sidecar import counted_reasons
from tasks.dataset.building.conversion.staging import known_shards, staged, write_rules
from tasks.dataset.building.conversion.tally import BuildTally, counted
from tasks.dataset.building.fingerprint import another_converter, config_digest
from tasks.dataset.building.freshness import is_for_the_same, unchanged
from tasks.dataset.building.listed.catalogue import Catalogue
from tasks.dataset.building.listed.shard_plan import PlannedShard
from tasks.dataset.building.listed.spill import FOLDER, read_spilled
from tasks.dataset.building.listing import SourceListing
from tasks.dataset.building.looks import RawLooks
from tasks.dataset.building.score_rules import ScoreRules
from tasks.dataset.building.under_way import build_under_way
from tasks.dataset.sources.protocol import is_by_row
from tasks.dataset.tar.format import span_bytes
from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.version import layout
from tasks.dataset.version.build_info import read_build_info
from tasks.dataset.version.layout import STAGING
from tasks.dataset.version.manifest import read_manifest, rejects_allowed

TRIED = 20
STATED = 200
"""The most containers that are opened for the number of their samples."""
UNSURE = 1.3
"""There may be so many times the samples that are estimated."""


@dataclass(frozen=True, kw_only=True)
class TriedWork:
    """What the work takes, by the samples that were tried. `bytes` and `seconds` are for one process."""

    bytes: int
    seconds: float
    tried: int
    taken: int
    """How many of the tried samples are accepted."""
    tried_rejects: Mapping[str, str]
    """An example of each reason among the tried samples."""
    tried_reasons: Mapping[str, int]
    """How many of the tried samples are rejected, by reason."""
    stops: str | None
    """Why the build would stop, as far as that is known without converting everything."""
    to_compare: int = 0
    """How many samples are measured before they are grouped by content; of samples that are yet to be read,
    the most."""
    compare_seconds: float = 0.0
    """What that takes one process, which is about as long as converting them."""


@dataclass(frozen=True, kw_only=True)
class ConversionWork(TriedWork):
    """What is to be converted, by the listing of the sources."""

    listed: int
    filtered: int
    rejected: Mapping[str, int]
    rejected_examples: Mapping[str, str]
    passed_over: Mapping[str, int]
    shards: int
    to_convert: int
    to_convert_shards: int
    staged_shards: int
    """How many shards an interrupted build has finished, or the one that is under way."""


@dataclass(frozen=True, kw_only=True)
class ReadingWork(TriedWork):
    """What is to be read of sequential sources, whose samples are known only afterwards.

    `samples` is an estimate unless it `is_stated` by the containers, and None where nothing shows it; `bytes`
    and `seconds` are those of converting that many. `read_before` containers were read by an interrupted
    build. `changed` are the places in the listing, from 0, of containers that are not as the current version
    had them, and `gone` counts those that have gone; both None where it does not record them.
    """

    containers: Sequence[str]
    read_bytes: int
    read_before: int
    changed: Sequence[int] | None
    gone: int | None
    samples: int | None
    is_stated: bool


@dataclass(frozen=True)
class Forecast:
    """What `tarmac build` would do.

    `up_to_date` is the version that already equals what the build would make. Otherwise one of `work` and
    `reading` is there. `free_bytes` is the free space on the output's disk, and `holder` who builds the
    dataset just now.
    """

    up_to_date: str | None
    why: str | None
    free_bytes: int
    work: ConversionWork | None = None
    reading: ReadingWork | None = None
    doubts: Sequence[str] = ()
    """Probable mistakes in the config."""
    holder: str | None = None

    @property
    def needed_bytes(self) -> int:
        """The most that the build writes: raw members wait on the disk until their shard is converted."""
        if self.reading is not None:
            return max(2 * self.reading.read_bytes, self.reading.bytes)
        return self.work.bytes if self.work is not None else 0

    @property
    def stops(self) -> str | None:
        """Why the build would stop, as far as that is known."""
        found = self.work or self.reading
        if found is None or found.stops is not None:
            return None if found is None else found.stops
        if found.bytes > self.free_bytes:
            needs = f"it writes about {size_text(found.bytes)}"
            return f"{needs}, and {size_text(self.free_bytes)} are free on the disk of dataset.output"
        return None


def forecast(config: Config, progress: Progress = no_progress) -> Forecast:
    """Forecast the build of a config; UsageError and DataError as the build would raise them."""
    output = config.dataset.output.absolute()
    before = layout.linked(config.dataset.output)
    with (
        tempfile.TemporaryDirectory(prefix="tarmac-plan-") as temporary,
        closing(SourceListing(config, Path(temporary), progress)) as listing,
    ):
        existing = next(path for path in (output, *output.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        listing.survey()
        inputs = listing.inputs_digest
        if before is not None and unchanged(before, inputs, config.dataset):
            return Forecast(before.name, None, free)
        under_way = build_under_way(output)
        found = Forecast(None, None, free, holder=None if under_way is None else str(under_way[0]))
        if listing.has_containers:
            doubts = listing.doubts()
            kept = None
            if under_way is None:
                kept = listing.interrupted(output / STAGING, Path(temporary, "kept"))
            read_before = 0 if kept is None else len(kept.containers(are_read=True))
            if kept is None or not kept.fact("planned"):
                why = _why(config, before, inputs, "a container of the source has changed, come or gone")
                reading = _reading(config, before, listing, read_before, progress)
                return replace(found, why=why, reading=reading, doubts=doubts)
            with closing(kept):
                work = _work(config, before, kept, ScoreRules(config, listing.scored))
        else:
            listing.read()
            looks = None
            if config.dataset.splits.group_by == CONTENT:
                looks = RawLooks(config, listing.catalogue, listing.origins)
            listing.plan(() if looks is None else moves_of(config, listing.catalogue, looks))
            to_compare = 0 if looks is None else len(looks.missing)
            work = _work(config, before, listing.catalogue, ScoreRules(config, listing.scored), to_compare)
        what = "samples or their scores" if listing.scored else "samples"
    changed = f"{what} have changed, come or gone" if work.to_convert else "samples have gone"
    return replace(found, why=_why(config, before, inputs, changed), work=work)


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


def _work(
    config: Config, before: Path | None, catalogue: Catalogue, scores: ScoreRules, to_compare: int = 0
) -> ConversionWork:
    """Count what is planned, and try a few of the samples that are to be converted."""
    dataset, folder = config.dataset, catalogue.path.parent
    catalogue.forget_conversions()  # of an interrupted build, whose sidecars are counted below
    decisions = scores.decide()
    known = known_shards(dataset.output, catalogue, decisions)
    tally = counted(config, catalogue)
    for ordinal, shard in known.items():
        tally.add(ordinal, shard.samples, shard.rejects)
    missing, done = [], 0
    for planned in catalogue.shards():
        if planned.ordinal in known:
            continue
        table = staged(dataset.output / STAGING, planned.digest)
        if table is None:
            missing.append(planned)
        else:
            tally.add(planned.ordinal, planned.samples, counted_reasons(table))
            done += 1
    to_convert = sum(shard.samples for shard in missing)
    work = converter(folder, write_rules(folder, dataset), decisions=decisions.write(folder))
    trial = _try(catalogue, work, spread(missing, TRIED))
    return ConversionWork(
        listed=catalogue.read,
        filtered=catalogue.filtered,
        rejected=catalogue.reasons(),
        rejected_examples=catalogue.examples(),
        passed_over=catalogue.fact("passed_over") or {},
        shards=len(known) + len(missing) + done,
        to_convert=to_convert,
        to_convert_shards=len(missing),
        staged_shards=done,
        **trial.carried_to(to_convert, to_compare),
        stops=_stops(config, before, catalogue, tally, trial, to_convert),
    )


def _reading(
    config: Config, before: Path | None, listing: SourceListing, read_before: int, progress: Progress
) -> ReadingWork:
    """Count the containers that are to be read, and try the first samples in them."""
    found = listing.catalogue.containers(are_read=False)
    sizes = [max(one.stat.size, 0) for _, one in found]
    changed, gone = _changed_containers(before, listing)
    progress(0, 0, "opening the first containers")
    stated = listing.stated(STATED)
    listed = listing.catalogue.fact("seen") or 0  # in files of their own
    trial, weight, stops = _TriedSamples(), 0.0, None
    if listing.read_some(TRIED):
        catalogue, folder = listing.catalogue, listing.catalogue.path.parent
        last = min(catalogue.accepted, TRIED * len(config.dataset.all_sources))
        work = converter(folder, write_rules(folder, config.dataset))
        trial = _try(catalogue, work, list(range(1, last + 1)))
        trial = trial.with_unopened(catalogue.examples(), catalogue.reasons())
        weight = _stored_bytes(catalogue, last)
        tally = counted(config, catalogue)
        stops = tally.explanation if tally.has_lost_containers else None
    samples = _estimated(sizes, stated, weight)
    number = None if samples is None else samples + listed
    is_stated = len(stated) == len(found)
    to_compare = (number or 0) if config.dataset.splits.group_by == CONTENT else 0
    return ReadingWork(
        containers=[one.name for _, one in found],
        read_bytes=sum(sizes),
        read_before=read_before,
        changed=changed,
        gone=gone,
        samples=number,
        is_stated=is_stated,
        **trial.carried_to(number or 0, to_compare),
        stops=stops or trial.stops(config.dataset.reject_budget, number, is_stated),
    )


def _stored_bytes(catalogue: Catalogue, last: int) -> float:
    """Return the bytes that a sample from a container takes in a tar, as a mean over the entries up to the
    `last`; 0 where none is from a container."""
    folder = catalogue.path.parent / FOLDER
    spilled = [read_spilled(folder, one) for one in catalogue.entries(1, last + 1) if one.part is not None]
    return sum(span_bytes([len(content) for content in one.values()]) for one in spilled) / max(
        len(spilled), 1
    )


def _estimated(sizes: Sequence[int], stated: Mapping[int, int], weight: float) -> int | None:
    """Return how many samples containers of these sizes hold: what they state, and for the others an estimate
    by those that do, or else by the bytes of a sample; None where neither is known."""
    known, rest = sum(stated.values()), sum(sizes) - sum(sizes[place] for place in stated)
    if not rest:
        return known
    if known:
        weight = sum(sizes[place] for place in stated) / known
    return known + round(rest / weight) if weight else None


def _changed_containers(before: Path | None, listing: SourceListing) -> tuple[list[int] | None, int | None]:
    """Return the places of the containers that have come or changed since the version, and how many have
    gone."""
    recorded = {}
    if before is not None:
        with suppress(DataError):  # verify reports damage
            recorded = read_build_info(before).containers
    if not recorded:
        return None, None
    now = listing.container_stamps
    changed = [place for place, (name, stamp) in enumerate(now.items()) if recorded.get(name) != stamp]
    return changed, len(recorded.keys() - now.keys())


def spread(shards: Sequence[PlannedShard], count: int) -> list[int]:
    """Return the ranks of `count` samples, or of all if there are fewer, spread evenly over these shards."""
    ends = list(accumulate(shard.samples for shard in shards))
    total = ends[-1] if ends else 0
    count = min(count, total)
    found = []
    for place in (number * total // count for number in range(count)):
        shard = bisect_right(ends, place)
        found.append(shards[shard].stop - (ends[shard] - place))
    return found


def _stops(
    config: Config,
    before: Path | None,
    catalogue: Catalogue,
    tally: BuildTally,
    trial: _TriedSamples,
    to_convert: int,
) -> str | None:
    """Return why the build would stop: it is certain to, or no sample that was tried is accepted and the
    budget does not allow for all of them."""
    if not catalogue.accepted:
        return tally.none_left(catalogue.filtered)
    tally.add(-1, trial.tried, trial.reasons)
    if tally.is_exceeded:
        return tally.explanation
    if trial.tried and not trial.taken and tally.rejects.total() + to_convert - trial.tried > tally.allowed:
        return trial.none_taken
    try:
        since(before, catalogue, config.dataset).check(before, config.dataset.private)
    except DataError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class _TriedSamples:
    """Samples that were tried: how many, how many are accepted, their bytes and seconds, their rejects by
    reason, and an example of each reason."""

    tried: int = 0
    taken: int = 0
    bytes: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    examples: Mapping[str, str] = field(default_factory=dict)

    @property
    def none_taken(self) -> str:
        return f"none of {counted_text(self.tried, 'sample')} tried is accepted; mend what they lack"

    def carried_to(self, samples: int, to_compare: int) -> dict[str, Any]:
        """Return the fields of `TriedWork`, with what this many samples take, and so many to be compared."""
        share = samples / max(self.tried, 1)
        return {
            "to_compare": to_compare,
            "compare_seconds": self.seconds * to_compare / max(self.tried, 1),
            "bytes": round(self.bytes * share),
            "seconds": self.seconds * share,
            "tried": self.tried,
            "taken": self.taken,
            "tried_rejects": self.examples,
            "tried_reasons": dict(self.reasons),
        }

    def stops(self, budget: float, samples: int | None, is_stated: bool) -> str | None:
        """Return why a build of so many samples would stop; that many are an estimate unless `is_stated`."""
        if self.tried and not self.taken:
            return self.none_taken
        rejected, about = self.reasons.total(), "" if is_stated else "about "
        if samples is None or rejected <= rejects_allowed(
            budget, round(samples * (1 if is_stated else UNSURE))
        ):
            return None
        return (
            f"{rejected:,} of the {self.tried:,} samples tried are rejected, and dataset.reject_budget "
            f"({budget:.1%}) allows {rejects_allowed(budget, samples):,} of {about}{samples:,}"
        )

    def with_unopened(self, examples: Mapping[str, str], reasons: Mapping[str, int]) -> _TriedSamples:
        """Return the trial with samples that were rejected before they could be tried."""
        tried, both = self.tried + sum(reasons.values()), {**examples, **self.examples}
        return replace(self, tried=tried, examples=both, reasons=self.reasons + Counter(reasons))


def _try(catalogue: Catalogue, work: Converter, ranks: list[int]) -> _TriedSamples:
    """Convert these entries."""
    entries = [entry for rank in ranks for entry in catalogue.entries(rank, rank + 1)]
    fetched = [entry for entry in entries if is_by_row(entry.stamp)]
    work.announce([*fetched, *fetched])
    with ShardWriter(work.staging / "tried.tar") as writer:
        for entry in fetched or entries[:1]:
            work.convert(writer, entry)  # so that neither imports nor the network are timed
        began, before = time.perf_counter(), writer.size_bytes
        outcomes = [work.convert(writer, entry) for entry in entries]
        took, size = time.perf_counter() - began, writer.size_bytes - before
    rejects = [(one.entry.place, one.reject) for one in outcomes if one.reject]
    return _TriedSamples(
        tried=len(entries),
        taken=len(entries) - len(rejects),
        bytes=size,
        seconds=took,
        reasons=Counter(str(reject.reason) for _, reject in rejects),
        examples={str(reject.reason): f"{place}: {reject.detail}" for place, reject in rejects},
    )
