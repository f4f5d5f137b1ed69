"""Converts planned shards to tars: the engine distributes them, and a worker process converts each
idempotently.

The rejects of every finished shard count against the reject budget, so a build that must fail stops early.

A tar and its sidecar are written under temporary names, flushed to disk and renamed, the sidecar last. So a
kill or a crash of the machine costs at most the shards in progress. A worker flushes a shard while it
converts the next one, so it receives a few small shards at a time, or one large one.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from tasks.core.engines import map_groups
from tasks.core.errors import DataError, TarmacError
from tasks.core.files import digest, disk_full_as_error, fsync_path
from tasks.core.schema import Config, Dataset
from tasks.core.screen import Progress
from tasks.core.units import near
from tasks.dataset import filters
from tasks.dataset.building.catalogue import FILTERED, NAME, Catalogue, ListedSample
from tasks.dataset.building.check import measured_rules
from tasks.dataset.building.fingerprint import members_digest
from tasks.dataset.building.freshness import rejects_allowed
from tasks.dataset.building.shard_plan import PlannedShard
from tasks.dataset.building.sidecar import (
    ConvertedSample,
    counted_reasons,
    holds_transient,
    sidecar,
)
from tasks.dataset.building.spill import FOLDER, read_spilled
from tasks.dataset.building.staging import (
    JOBS,
    RULES,
    KnownShard,
    KnownSidecars,
    sidecar_path,
    staged,
    tar_path,
    write_rules,
)
from tasks.dataset.modalities import MODALITIES, Modality
from tasks.dataset.rejects import TRANSIENT, Reject, printable, reject_lines
from tasks.dataset.sources import Absent, Source, of_files, open_sources
from tasks.dataset.tables import write_batch
from tasks.dataset.tar.format import Members
from tasks.dataset.tar.writer import ShardWriter

NOTE = "samples"
TASK_BYTES = 128 << 20
TASK_SHARDS = 8
TASKS_PER_WORKER = 4
"""A task holds at most this many bytes or shards, and each worker gets at least TASKS_PER_WORKER tasks."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Conversion:
    """A worker's task: planned shards to convert in the folder `staging`, by the catalogue and the rules
    there.

    `rules` is the digest of these rules. A `known` shard is converted only if the content of a raw sample has
    changed.
    """

    staging: Path
    rules: str
    ordinals: tuple[int, ...]
    known: Mapping[int, KnownShard] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Converted:
    """A shard that is done: the number of its raw samples, its rejects and filtered samples by reason, and
    whether the known shard was kept."""

    ordinal: int
    samples: int
    rejects: Mapping[str, int]
    is_known: bool


class BudgetExceeded(Exception):
    """There are more rejects than the budget allows."""


@dataclass
class BuildTally:
    """Counts samples and rejects during a build, and knows when the build is certain to exceed its budget.

    In the order of key hashes the first shards are a random sample, so a build that must fail fails early.
    `read` counts the raw samples and `containers` where they come from; `total` samples are to be converted.
    The budget is `share`, the allowed share of rejects. It is unknown how many samples are lost with the
    containers that are `cut_short`, so these count against the budget as a share of the containers.
    """

    read: int
    share: float
    total: int = 0
    containers: int = 1
    cut_short: int = 0
    done: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    rejecting: list[int] = field(default_factory=list)
    """The shards that hold rejects or filtered samples."""

    def add(self, ordinal: int, samples: int, rejects: Mapping[str, int]) -> None:
        self.done += samples
        self.rejects.update({reason: number for reason, number in rejects.items() if reason != FILTERED})
        if rejects:
            self.rejecting.append(ordinal)

    @property
    def allowed(self) -> int:
        """The number of rejects that the budget allows."""
        return rejects_allowed(self.share, self.read)

    @property
    def is_exceeded(self) -> bool:
        return self.rejects.total() > self.allowed or self._has_lost_containers

    @property
    def _has_lost_containers(self) -> bool:
        return self.cut_short > self.share * self.containers

    @property
    def explanation(self) -> str:
        """How the budget is exceeded, for the user."""
        total, looked_at = self.rejects.total(), self.read - self.total + self.done
        allowed = f"dataset.reject_budget ({self.share:.1%})"
        if self._has_lost_containers:
            return (
                f"{self.cut_short:,} of {self.containers:,} tars or tables are cut short, and it is unknown "
                f"how many samples are lost with them; that is more than {allowed} of these"
            )
        if looked_at < self.read:
            return (
                f"at least {total:,} of the {looked_at:,} samples looked at are rejected "
                f"({total / looked_at:.1%}); stopped, because {allowed} allows {self.allowed:,} of the "
                f"{self.read:,} read"
            )
        return f"{total:,} of {self.read:,} read are rejected ({total / self.read:.1%}), more than {allowed}"

    def error(self, path: Path, is_private: bool, usual: Sequence[str]) -> DataError:
        """Return the error that ends the build. It lists the rejects by reason from the table at `path`,
        with their causes unless the data is private; `usual` are keys of arbitrary samples to compare them
        with."""
        lines = [
            f"{self.explanation}; the current version stays as it was",
            *reject_lines(path.parent, self.rejects, is_private, usual),
            f"  tarmac look {shlex.quote(near(path))} --rejects lists all; mend the sources and run again: "
            "only these are redone",
        ]
        return DataError("\n".join(lines))


def counted(config: Config, catalogue: Catalogue) -> BuildTally:
    """Return a tally that starts with what the listing has found."""
    share, containers = config.dataset.reject_budget, catalogue.container_count
    cut_short, rejects = catalogue.fact("cut_short") or 0, Counter(catalogue.reasons())
    return BuildTally(catalogue.read, share, catalogue.accepted, containers, cut_short, rejects=rejects)


def convert_all(
    config: Config,
    catalogue: Catalogue,
    known: dict[int, KnownShard],
    tally: BuildTally,
    progress: Progress,
    *,
    rehash: bool = False,
) -> Generator[int, None, None]:
    """Convert the planned shards that are not `known` into the catalogue's folder, and yield the ordinal of
    every planned shard as soon as it is done. BudgetExceeded as soon as the rejects are certain to exceed the
    budget.

    With `rehash` the known shards are compared with their source. Those that differ are converted and removed
    from `known`.
    """
    staging = catalogue.path.parent
    rules = write_rules(staging, config.dataset)

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
    at_once = _at_once(config, catalogue, len(ordinals))
    groups = (tuple(ordinals[start : start + at_once]) for start in range(0, len(ordinals), at_once))
    tasks = (
        Conversion(staging, rules, group, {ordinal: known[ordinal] for ordinal in group if ordinal in known})
        for group in groups
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


def _at_once(config: Config, catalogue: Catalogue, shards: int) -> int:
    """Return how many shards a task holds."""
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
    ):
        for planned in map(catalogue.shard, task.ordinals):
            table: Any = staged(task.staging, planned.digest)
            is_known = False
            if table is None or holds_transient(table):
                work = converter(task.staging, task.rules)
                entries = catalogue.entries(planned.start, planned.stop)
                known = task.known.get(planned.ordinal)
                if known is not None:
                    table = sidecars[known]
                    is_known = work.is_unchanged(entries, table)
                if not is_known:
                    table, tar = _write(work, planned, entries)
                    previous = flushing
                    flushing = thread.submit(_keep, task.staging, planned.digest, table, tar)
                    if previous is not None:
                        previous.result()
            done.append(Converted(planned.ordinal, table.num_rows, counted_reasons(table), is_known))
        if flushing is not None:
            flushing.result()
    return done


@dataclass(frozen=True)
class Converter:
    """Converts raw samples by the dataset's rules."""

    dataset: Dataset
    sources: Sequence[Source]
    modality: Modality
    staging: Path
    rules: Mapping[str, Any]
    """The rules on statistics."""

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
        """Whether every sample has the content that the sidecar records, or still cannot be read."""
        for entry, content in zip(entries, table.column("content").to_pylist(), strict=True):
            try:
                found = content_digest(entry, self.raw(entry))
            except Reject:
                found = None
            if found != content:
                return False
        return True

    def convert(self, writer: ShardWriter, entry: ListedSample) -> ConvertedSample:
        """Append the sample to the tar unless it is rejected."""
        content = None
        try:
            raw = self.raw(entry)
            content = content_digest(entry, raw)
            taken = self.modality.take(raw, self.dataset)
            if not filters.passes(self.rules, taken.statistics):
                return ConvertedSample(entry, None, content, {}, None, is_filtered=True)
            span = writer.add(entry.key, taken.members)
        except Reject as reject:
            return ConvertedSample(entry, None, content, {}, reject)
        except MemoryError:
            raise TarmacError(
                f"{printable(entry.place)}: there is not enough memory on this machine to convert it; lower "
                "engine.build.workers, or lower dataset.image.max_pixels so that it is rejected"
            ) from None
        except (OSError, TarmacError):
            raise  # a fault of this host, or of the source as a whole
        except Exception as error:  # noqa: BLE001 - hostile bytes in a decoder cost one sample, never the build
            detail = _ADDRESS.sub("", f"{type(error).__name__}: {error}")[:200]
            return ConvertedSample(entry, None, content, {}, Reject(self.modality.undecodable, detail))
        return ConvertedSample(entry, span, content, taken.statistics, None, " ".join(sorted(taken.members)))


@lru_cache(maxsize=1)
def converter(staging: Path, rules: str) -> Converter:
    """Return the converter by the rules in `staging`. TarmacError if these have another digest, because a
    shared file system may show another machine the old file for some seconds."""
    content = (staging / RULES).read_bytes()
    if digest(content.decode()) != rules:
        raise TarmacError(f"{staging / RULES} is not up to date on this machine yet; build again")
    dataset = Dataset.model_validate_json(content)
    sources = open_sources(dataset)
    modality = MODALITIES[dataset.modality]
    return Converter(dataset, sources, modality, staging, measured_rules(dataset, sources))


def content_digest(entry: ListedSample, raw: Members) -> bytes:
    """Digest the sample as it came: its keys and raw members, not times or places."""
    return bytes(members_digest(raw, entry.key, entry.original_key).digest())


def _write(
    work: Converter, planned: PlannedShard, entries: Sequence[ListedSample]
) -> tuple[Any, Path | None]:
    """Return a shard's sidecar, and its tar under a temporary name unless all samples were rejected."""
    modality = work.dataset.modality
    temporary = work.staging / f".{planned.digest}.{uuid4().hex}"
    try:
        with ShardWriter(temporary) as writer:
            outcomes = [work.convert(writer, entry) for entry in entries]
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
