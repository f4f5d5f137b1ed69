"""Converts planned shards to tars: the engine distributes them, and a worker process converts each
idempotently.

A tar and its sidecar are written under temporary names, flushed to disk and renamed, the sidecar last. So a
kill or a crash of the machine costs at most the shards in progress. A worker flushes a shard while it
converts the next one, so it receives a few small shards at a time, or one large one.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from tasks.core.engines import map_groups
from tasks.core.errors import TarmacError
from tasks.core.files import digest, disk_full_as_error, fsync_path
from tasks.core.schema import Config, Dataset
from tasks.core.screen import Progress
from tasks.dataset import filters
from tasks.dataset.building.check import measured_rules
from tasks.dataset.building.conversion.sidecar import (
    ConvertedSample,
    counted_reasons,
    holds_transient,
    sidecar,
)
from tasks.dataset.building.conversion.staging import (
    JOBS,
    RULES,
    KnownShard,
    KnownSidecars,
    sidecar_path,
    staged,
    tar_path,
    write_rules,
)
from tasks.dataset.building.conversion.tally import BudgetExceeded, BuildTally
from tasks.dataset.building.fingerprint import members_digest
from tasks.dataset.building.kept import KeptSamples, shards_to_keep_from
from tasks.dataset.building.listed.catalogue import NAME, Catalogue, ListedSample
from tasks.dataset.building.listed.shard_plan import PlannedShard
from tasks.dataset.building.listed.spill import FOLDER, read_spilled
from tasks.dataset.building.score_rules import ScoreDecisions
from tasks.dataset.modalities import MODALITIES, Modality
from tasks.dataset.sources import Absent, Source, of_files, open_sources
from tasks.dataset.sources.protocol import is_by_row
from tasks.dataset.tar.format import Members
from tasks.dataset.tar.writer import ShardWriter
from tasks.dataset.version.rejects import PASSING, TRANSIENT, Reject, printable
from tasks.dataset.version.tables import write_batch

if TYPE_CHECKING:
    from tasks.core.remote.addresses import AddressFetcher

NOTE = "samples"
TASK_BYTES = 128 << 20
TASK_SHARDS = 8
TASKS_PER_WORKER = 4
"""A task holds at most this many bytes or shards, and each worker gets at least TASKS_PER_WORKER tasks."""
FIRST_FETCHED, MOST_DOUBLINGS = 1024, 4
"""A worker's first task fetches this many samples; the number doubles so many times."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Conversion:
    """A worker's task: planned shards to convert in the folder `staging`, by the catalogue and the rules
    there.

    `rules` is the digest of these rules, and `decisions` the file of what the rules on scores leave out. A
    `known` shard is converted only if the content of a raw sample has changed. `kept` are shards with samples
    that need not be fetched again, `fetches` whether any sample is fetched from an address, and `workers` how
    many workers the build has.
    """

    staging: Path
    rules: str
    ordinals: tuple[int, ...]
    known: Mapping[int, KnownShard] = field(default_factory=dict)
    kept: Mapping[int, Sequence[KnownShard]] = field(default_factory=dict)
    fetches: bool = False
    workers: int = 1
    decisions: Path | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """A shard that is done: the number of its raw samples, its rejects and filtered samples by reason, and
    whether the known shard was kept."""

    ordinal: int
    samples: int
    rejects: Mapping[str, int]
    is_known: bool


def convert_all(
    config: Config,
    catalogue: Catalogue,
    known: dict[int, KnownShard],
    tally: BuildTally,
    progress: Progress,
    *,
    rehash: bool = False,
    decisions: ScoreDecisions | None = None,
) -> Generator[int, None, None]:
    """Convert the planned shards that are not `known` into the catalogue's folder, and yield the ordinal of
    every planned shard as soon as it is done. BudgetExceeded as soon as the rejects are certain to exceed the
    budget.

    With `rehash` the known shards are compared with their source. Those that differ are converted and removed
    from `known`. `decisions` are those of the rules on scores.
    """
    staging = catalogue.path.parent
    rules = write_rules(staging, config.dataset)
    decided = None if decisions is None else decisions.write(staging)

    def report(text: str) -> None:
        progress(tally.done, tally.total, f"{NOTE}; {text}")

    given = {} if rehash else known
    for ordinal, shard in given.items():
        tally.add(ordinal, shard.samples, shard.rejects)
    if tally.is_exceeded:
        raise BudgetExceeded
    yield from given
    if config.engine.build.kind != "local":
        fsync_path(catalogue.path)  # so that workers on other machines see all of it
    ordinals = [shard.ordinal for shard in catalogue.shards() if shard.ordinal not in given]
    fetches = bool(catalogue.fact("addresses"))
    kept = {} if rehash else shards_to_keep_from(config.dataset, catalogue, known)
    workers = workers_of(config)
    tasks = (
        Conversion(staging, rules, group, _of(group, known), _of(group, kept), fetches, workers, decided)
        for group in _groups(config, catalogue, ordinals, fetches)
    )
    for converted in map_groups(convert, tasks, config.engine, folder=staging / JOBS, say=report):
        for one in converted:
            tally.add(one.ordinal, one.samples, one.rejects)
            if not one.is_known:
                known.pop(one.ordinal, None)
        progress(tally.done, tally.total, NOTE)
        if tally.is_exceeded:
            raise BudgetExceeded  # ends the map: shards in progress are finished, and no more are begun
        yield from (one.ordinal for one in converted)


def _of(ordinals: Sequence[int], shards: Mapping[int, Any]) -> dict[int, Any]:
    return {ordinal: shards[ordinal] for ordinal in ordinals if ordinal in shards}


def workers_of(config: Config) -> int:
    """Return how many workers convert at once, as far as the config says."""
    engine = config.engine.for_build()
    return (engine.jobs or 4 if engine.kind == "slurm" else 1) * (engine.workers or engine.cpus or 1)


def _groups(
    config: Config, catalogue: Catalogue, ordinals: Sequence[int], fetches: bool
) -> Iterator[tuple[int, ...]]:
    """Cut the shards into those of one task each.

    A task that fetches ends with its slowest addresses, so it holds many. The first ones hold few, so that a
    build that must fail fails early.
    """
    at_once, start, number = _at_once(config, catalogue, len(ordinals)), 0, 0
    of_a_shard = max(1, catalogue.accepted // max(catalogue.planned, 1))
    while start < len(ordinals):
        if fetches:
            doublings = min(number // workers_of(config), MOST_DOUBLINGS)
            at_once = max(1, (FIRST_FETCHED << doublings) // of_a_shard)
        yield tuple(ordinals[start : start + at_once])
        start, number = start + at_once, number + 1


def _at_once(config: Config, catalogue: Catalogue, shards: int) -> int:
    """Return how many shards a task holds that fetches nothing."""
    workers = config.engine.build.workers
    if config.engine.build.kind != "local" or workers is None:
        return 1
    shard_bytes = catalogue.entry_bytes // max(catalogue.planned, 1) + 1
    return max(1, min(TASK_SHARDS, TASK_BYTES // shard_bytes, shards // (TASKS_PER_WORKER * workers)))


def convert(task: Conversion) -> list[Converted]:
    """Convert the shards that are not staged already; all of them are on disk when this returns."""
    done = []
    sidecars = KnownSidecars()
    flushing: Future[None] | None = None
    with (
        closing(Catalogue(task.staging / NAME, reads_only=True)) as catalogue,
        disk_full_as_error(task.staging),
        ThreadPoolExecutor(1) as thread,
        _announced(task, catalogue, sidecars),
    ):
        decisions = ScoreDecisions.load(task.decisions)
        for planned in map(catalogue.shard, task.ordinals):
            table: Any = staged(task.staging, planned.digest)
            is_known = False
            if table is None or holds_transient(table) or not decisions.agree_with(table):
                work = converter(task.staging, task.rules, task.workers, task.decisions)
                entries = catalogue.entries(planned.start, planned.stop)
                known = task.known.get(planned.ordinal)
                if known is not None and work.is_unchanged(entries, sidecars[known]):
                    table, is_known = sidecars[known], True
                else:
                    with closing(_kept(task, planned, table, sidecars)) as kept:
                        table, tar = _write(work, planned, entries, kept, asks_anew=known is not None)
                    previous = flushing
                    flushing = thread.submit(_keep, task.staging, planned.digest, table, tar)
                    if previous is not None:
                        previous.result()
            done.append(Converted(planned.ordinal, table.num_rows, counted_reasons(table), is_known))
        if flushing is not None:
            flushing.result()
    return done


@contextmanager
def _announced(task: Conversion, catalogue: Catalogue, sidecars: KnownSidecars) -> Iterator[None]:
    """Have the samples at addresses fetched, in the order in which the block converts them. What it leaves
    unread is given up."""
    if not task.fetches:
        yield
        return
    work = converter(task.staging, task.rules, task.workers, task.decisions)
    try:
        for planned in map(catalogue.shard, task.ordinals):
            table = staged(task.staging, planned.digest)
            if table is None or holds_transient(table):
                entries = catalogue.entries(planned.start, planned.stop)
                if planned.ordinal not in task.known:
                    with closing(_kept(task, planned, table, sidecars)) as kept:
                        entries = [entry for entry in entries if entry not in kept]
                work.announce(entries)
        yield
    finally:
        work.fetcher.forget()


def _kept(task: Conversion, planned: PlannedShard, table: Any | None, sidecars: KnownSidecars) -> KeptSamples:
    """Return the samples of a shard that need not be fetched again: from versions, and from the staged
    shard with this sidecar, which an earlier build has left."""
    work = converter(task.staging, task.rules, task.workers, task.decisions)
    found: list[tuple[Any, Path | None]] = []
    if task.fetches:
        known = task.known.get(planned.ordinal)
        shards = task.kept.get(planned.ordinal, ()) if known is None else (known,)
        found = [(sidecars[one], None if one.tar is None else one.version / one.tar) for one in shards]
        if table is not None:
            found.append((table, tar_path(task.staging, planned.digest)))
    return KeptSamples(work.dataset.modality, found, work.rules, work.decisions)


@dataclass(frozen=True)
class Converter:
    """Converts raw samples by the dataset's rules. `workers` is how many processes do so at once."""

    dataset: Dataset
    sources: Sequence[Source]
    modality: Modality
    staging: Path
    rules: Mapping[str, Any]
    """The rules on statistics."""
    workers: int
    decisions: ScoreDecisions
    """What the rules on scores leave out."""

    @cached_property
    def fetcher(self) -> AddressFetcher:
        from tasks.core.remote.addresses import AddressFetcher

        return AddressFetcher(self.staging, self.workers)

    def announce(self, entries: Sequence[ListedSample]) -> None:
        """Have the entries at web addresses fetched, in this order, ahead of their conversion."""
        by_row = [entry for entry in entries if is_by_row(entry.stamp)]
        for index, some in groupby(by_row, key=lambda entry: entry.source):
            samples = [(entry.file, entry.content) for entry in some]
            of_files(self.sources[index]).announce(samples, self.fetcher)

    def announce_stored(self, entries: Iterable[ListedSample]) -> None:
        """Have the entries in remote stores fetched, in this order, ahead of their conversion."""
        by_source: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for entry in entries:
            if entry.part is None:
                by_source[entry.source].append((entry.file, entry.content))
        for index, samples in by_source.items():
            of_files(self.sources[index]).announce(samples, None)

    def raw(self, entry: ListedSample) -> Members:
        """Return the sample's raw members; Reject if they cannot be read."""
        if entry.part is not None:
            return read_spilled(self.staging / FOLDER, entry)
        source = of_files(self.sources[entry.source])
        try:
            return source.read(entry.file, entry.content)
        except Absent:
            if entry.size >= 0:
                raise Reject(TRANSIENT, "was there when it was listed") from None
            raise

    def is_unchanged(self, entries: Sequence[ListedSample], table: Any) -> bool:
        """Whether every sample has the content that the sidecar records, or still cannot be read. A server
        that does not answer now is no evidence. Otherwise what was read is announced once more."""
        self.announce_stored(entries)
        for number, (entry, content) in enumerate(
            zip(entries, table.column("content").to_pylist(), strict=True), 1
        ):
            try:
                found = content_digest(entry, self.raw(entry))
            except Reject as reject:
                found = None
                if is_by_row(entry.stamp) and reject.reason in PASSING:
                    continue
            if found != content:
                self.announce(entries[:number])
                return False
        return True

    def convert(self, writer: ShardWriter, entry: ListedSample) -> ConvertedSample:
        """Append the sample to the tar unless it is rejected."""
        content = None
        try:
            with self.rejecting(entry):
                raw = self.raw(entry)
                content = content_digest(entry, raw)
                if self.decisions.fails_one(content):
                    return ConvertedSample(entry, None, content, {}, None, is_filtered=True, by_score=True)
                taken = self.modality.take(raw, self.dataset)
                if not filters.passes_measured(self.rules, taken.statistics):
                    return ConvertedSample(entry, None, content, taken.statistics, None, is_filtered=True)
                span = writer.add(entry.key, taken.members)
        except Reject as reject:
            return ConvertedSample(entry, None, content, {}, reject)
        return ConvertedSample(entry, span, content, taken.statistics, None, " ".join(sorted(taken.members)))

    @contextmanager
    def rejecting(self, entry: ListedSample) -> Iterator[None]:
        """Raise Reject for what the block cannot decode, whatever a decoder raises; TarmacError where it
        takes too much memory. Faults of this host, or of the source as a whole, are raised as they are."""
        try:
            yield
        except (Reject, OSError, TarmacError):
            raise
        except MemoryError:
            raise TarmacError(
                f"{printable(entry.place)}: there is not enough memory on this machine to convert it; lower "
                "engine.build.workers, or lower dataset.image.max_pixels so that it is rejected"
            ) from None
        except Exception as error:  # noqa: BLE001 - hostile bytes in a decoder cost one sample, never the build
            detail = _ADDRESS.sub("", f"{type(error).__name__}: {error}")[:200]
            raise Reject(self.modality.undecodable, detail) from None


@lru_cache(maxsize=1)
def converter(staging: Path, rules: str, workers: int = 1, decisions: Path | None = None) -> Converter:
    """Return the converter by the rules in `staging` and the file of decisions. TarmacError if the rules have
    another digest, because a shared file system may show another machine the old file for some seconds."""
    content = (staging / RULES).read_bytes()
    if digest(content.decode()) != rules:
        raise TarmacError(f"{staging / RULES} is not up to date on this machine yet; build again")
    dataset = Dataset.model_validate_json(content)
    sources = open_sources(dataset)
    modality, measured = MODALITIES[dataset.modality], measured_rules(dataset, sources)
    decided = ScoreDecisions.load(decisions)
    return Converter(dataset, sources, modality, staging, measured, workers, decided)


def content_digest(entry: ListedSample, raw: Members) -> bytes:
    """Digest the sample as it came: its keys and raw members, not times or places."""
    return bytes(members_digest(raw, entry.key, entry.original_key).digest())


def _write(
    work: Converter,
    planned: PlannedShard,
    entries: Sequence[ListedSample],
    kept: KeptSamples,
    asks_anew: bool = False,
) -> tuple[Any, Path | None]:
    """Return a shard's sidecar, and its tar under a temporary name unless all samples were rejected.

    Samples that are `kept` are taken over; with `asks_anew` only those whose server does not answer.
    """
    modality = work.dataset.modality

    def converted(entry: ListedSample) -> ConvertedSample:
        if entry not in kept:
            return work.convert(writer, entry)
        if asks_anew:
            found = work.convert(writer, entry)
            if found.reject is None or found.reject.reason not in PASSING:
                return found
        return kept.copy(writer, entry) or work.convert(writer, entry)

    temporary = work.staging / f".{planned.digest}.{uuid4().hex}"
    work.announce_stored(entry for entry in entries if entry not in kept)
    try:
        with ShardWriter(temporary) as writer:
            outcomes = [converted(entry) for entry in entries]
            seal = writer.finish()
    except BaseException:
        temporary.unlink(missing_ok=True)  # on a full disk it must free its space
        raise
    if writer.is_empty:
        temporary.unlink()
        return sidecar(modality, planned.digest, None, 0, outcomes), None
    return sidecar(modality, planned.digest, seal, writer.size_bytes, outcomes), temporary


def _keep(staging: Path, shard: str, table: Any, tar: Path | None) -> None:
    """Flush a shard's files to disk and give them their names. A file that cannot be flushed is removed,
    because the system reports such an error only once and a second flush would seem to succeed."""
    temporary = staging / f".{shard}.{uuid4().hex}"
    try:
        if tar is not None:
            fsync_path(tar)
            os.replace(tar, tar_path(staging, shard))
        write_batch(temporary, table)
        fsync_path(temporary)
        os.replace(temporary, sidecar_path(staging, shard))
    except BaseException:
        for path in (tar, temporary):
            if path is not None:
                path.unlink(missing_ok=True)
        raise
