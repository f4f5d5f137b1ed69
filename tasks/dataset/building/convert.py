"""Planned shards to tars: all of them through the engine, each one idempotent in a worker process.

Every shard that is done is counted against the budget of rejects, so a build that must fail stops early.

A tar and its sidecar are written to temporary names, flushed to disk and renamed, the sidecar last. So a
build that is killed or whose machine crashes loses at most the shards in hand. A worker flushes a shard while
it converts the next, so it is handed a few small ones at a time, or a large one alone.
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
from tasks.dataset.building.catalogue import NAME, Catalogue, ListedSample
from tasks.dataset.building.fingerprint import members_digest
from tasks.dataset.building.freshness import rejects_allowed
from tasks.dataset.building.reuse import KnownShard, KnownSidecars
from tasks.dataset.building.shard_plan import PlannedShard
from tasks.dataset.building.sidecar import ConvertedSample, counted_reasons, holds_transient, sidecar
from tasks.dataset.building.spill import FOLDER, read_spilled
from tasks.dataset.building.staging import JOBS, RULES, sidecar_path, staged, tar_path, write_rules
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
"""Shards are handed out so many bytes or shards at a time, but in no fewer tasks per worker."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Conversion:
    """Planned shards of the catalogue in the folder `staging`, to be converted there by the rules in that
    folder, whose digest is `rules`. Those that are `known` are converted only if a raw sample of theirs has
    another content now."""

    staging: Path
    rules: str
    ordinals: tuple[int, ...]
    known: Mapping[int, KnownShard] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Converted:
    """A shard that is done: how many raw samples it was made of, the rejects among them by reason, and
    whether it is the one that was known."""

    ordinal: int
    samples: int
    rejects: Mapping[str, int]
    is_known: bool


class Exceeded(Exception):
    """There are more rejects than the budget has room for."""


@dataclass
class BuildTally:
    """Counts samples and rejects while a build runs, and knows when it is certain to pass its budget.

    In the order of key hashes the first shards are a random sample, so a build that must fail fails early.
    `read` raw samples came out of so many `containers`, and `total` of them are to be converted. Nobody knows
    how many samples are lost with the containers that are `cut_short`, so they count as containers against
    the budget, which is the `share` of rejects that is allowed.
    """

    read: int
    share: float
    total: int = 0
    containers: int = 1
    cut_short: int = 0
    done: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    rejecting: list[int] = field(default_factory=list)
    """The shards that hold rejects."""

    def add(self, ordinal: int, samples: int, rejects: Mapping[str, int]) -> None:
        self.done += samples
        self.rejects.update(rejects)
        if rejects:
            self.rejecting.append(ordinal)

    @property
    def allowed(self) -> int:
        """Rejects that the budget has room for."""
        return rejects_allowed(self.share, self.read)

    @property
    def is_exceeded(self) -> bool:
        return self.rejects.total() > self.allowed or self._has_lost_containers

    @property
    def _has_lost_containers(self) -> bool:
        return self.cut_short > self.share * self.containers

    @property
    def explanation(self) -> str:
        """How the budget is passed."""
        total, looked_at = self.rejects.total(), self.read - self.total + self.done
        allowed = f"dataset.reject_budget ({self.share:.1%})"
        if self._has_lost_containers:
            return (
                f"{self.cut_short:,} of {self.containers:,} tars or tables are cut short, and nobody knows "
                f"how many samples are lost with them; that is more than {allowed} of these"
            )
        if looked_at < self.read:
            return (
                f"at least {total:,} of the {looked_at:,} samples looked at are rejected "
                f"({total / looked_at:.1%}); stopped, as {allowed} has room for {self.allowed:,} of the "
                f"{self.read:,} read"
            )
        return f"{total:,} of {self.read:,} read are rejected ({total / self.read:.1%}), more than {allowed}"

    def error(self, path: Path, is_private: bool, usual: Sequence[str]) -> DataError:
        """The rejects by reason, each with its causes unless the data is private, from the table of rejects
        in `path`; `usual` are keys of any samples."""
        lines = [
            f"{self.explanation}; the current version stays as it was",
            *reject_lines(path.parent, self.rejects, is_private, usual),
            f"  tarmac look {shlex.quote(near(path))} --rejects lists all; mend the sources and run again: "
            "only these are redone",
        ]
        return DataError("\n".join(lines))


def counted(config: Config, catalogue: Catalogue) -> BuildTally:
    """A tally of what the listing has found."""
    return BuildTally(
        catalogue.read,
        config.dataset.reject_budget,
        catalogue.accepted,
        catalogue.container_count,
        catalogue.fact("cut_short") or 0,
        rejects=Counter(catalogue.reasons()),
    )


def convert_all(
    config: Config,
    catalogue: Catalogue,
    known: dict[int, KnownShard],
    tally: BuildTally,
    progress: Progress,
    *,
    rehash: bool = False,
) -> Generator[int, None, None]:
    """Convert the planned shards that are not `known` into the catalogue's folder; yield every planned shard
    as soon as it is done. Exceeded as soon as the budget is certain to be passed.

    With `rehash` the known shards are compared with their source, and those that differ are converted and not
    `known` any more.
    """
    staging = catalogue.path.parent
    rules = write_rules(staging, config.dataset)

    def say(text: str) -> None:
        progress(tally.done, tally.total, f"{NOTE}; {text}")

    given = {} if rehash else known
    for ordinal, shard in given.items():
        tally.add(ordinal, shard.samples, shard.rejects)
    if tally.is_exceeded:
        raise Exceeded
    yield from given
    if config.engine.build.kind != "local":
        fsync_path(catalogue.path)  # workers on other machines find all that is in it
    ordinals = [shard.ordinal for shard in catalogue.shards() if shard.ordinal not in given]
    at_once = _at_once(config, catalogue, len(ordinals))
    tasks = (
        Conversion(staging, rules, some, {ordinal: known[ordinal] for ordinal in some if ordinal in known})
        for some in (tuple(ordinals[start : start + at_once]) for start in range(0, len(ordinals), at_once))
    )
    for converted in map_groups(convert, tasks, config.engine, folder=staging / JOBS, say=say):
        for one in converted:
            tally.add(one.ordinal, one.samples, one.rejects)
            if not one.is_known:
                known.pop(one.ordinal, None)
        progress(tally.done, tally.total, NOTE)
        if tally.is_exceeded:
            raise Exceeded  # which ends the map: the shards in hand are finished, no more are begun
        yield from (one.ordinal for one in converted)


def _at_once(config: Config, catalogue: Catalogue, shards: int) -> int:
    """How many shards a worker is handed at a time."""
    workers = config.engine.build.workers
    if config.engine.build.kind != "local" or workers is None:
        return 1
    shard_bytes = catalogue.entry_bytes // max(catalogue.planned, 1) + 1
    return max(1, min(TASK_SHARDS, TASK_BYTES // shard_bytes, shards // (TASKS_PER_WORKER * workers)))


def convert(task: Conversion) -> list[Converted]:
    """Convert the shards that are not there already; all are on disk when this returns."""
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
                entries = catalogue.entries(planned)
                known = task.known.get(planned.ordinal)
                if known is not None:
                    table = sidecars[known]
                    is_known = work.is_unchanged(entries, table)
                if not is_known:
                    table, tar = _write(work, planned, entries)
                    before, flushing = (
                        flushing,
                        thread.submit(_keep, task.staging, planned.digest, table, tar),
                    )
                    if before is not None:
                        before.result()
            done.append(Converted(planned.ordinal, table.num_rows, counted_reasons(table), is_known))
        if flushing is not None:
            flushing.result()
    return done


@dataclass(frozen=True)
class Converter:
    """Takes raw samples as the dataset's rules say."""

    dataset: Dataset
    sources: Sequence[Source]
    modality: Modality
    staging: Path

    def raw(self, entry: ListedSample) -> Members:
        """The sample's raw members; Reject when they cannot be had."""
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
        """Whether every sample has the content that the sidecar says, or is rejected as it was."""
        for entry, content in zip(entries, table.column("content").to_pylist(), strict=True):
            try:
                found = content_digest(entry, self.raw(entry))
            except Reject:
                found = None
            if found != content:
                return False
        return True

    def convert(self, writer: ShardWriter, entry: ListedSample) -> ConvertedSample:
        """Append the sample to the tar if it can be taken."""
        content = None
        try:
            raw = self.raw(entry)
            content = content_digest(entry, raw)
            taken = self.modality.take(raw, self.dataset)
            span = writer.add(entry.key, taken.members)
        except Reject as reject:
            return ConvertedSample(entry, None, content, {}, reject)
        except MemoryError:
            raise TarmacError(
                f"{printable(entry.place)}: there is not enough memory on this machine to convert it; give "
                "engine.build.workers a smaller number, or dataset.image.max_pixels one that refuses it"
            ) from None
        except (OSError, TarmacError):
            raise  # of this host, or of the source as a whole
        except Exception as error:  # noqa: BLE001 - decoders are fed hostile bytes: one sample, never the build
            detail = _ADDRESS.sub("", f"{type(error).__name__}: {error}")[:200]
            return ConvertedSample(entry, None, content, {}, Reject(self.modality.undecodable, detail))
        return ConvertedSample(entry, span, content, taken.statistics, None, " ".join(sorted(taken.members)))


@lru_cache(maxsize=1)
def converter(staging: Path, rules: str) -> Converter:
    """What converts by the rules in `staging`; TarmacError when those there have another digest, as a shared
    file system may show them to another machine for some seconds."""
    content = (staging / RULES).read_bytes()
    if digest(content.decode()) != rules:
        raise TarmacError(f"{staging / RULES} is not up to date on this machine; build again")
    dataset = Dataset.model_validate_json(content)
    return Converter(dataset, open_sources(dataset), MODALITIES[dataset.modality], staging)


def content_digest(entry: ListedSample, raw: Members) -> bytes:
    """Of the sample as it came: its original key and raw members, not times or places."""
    return bytes(members_digest(raw, entry.key, entry.original_key).digest())


def _write(
    work: Converter, planned: PlannedShard, entries: Sequence[ListedSample]
) -> tuple[Any, Path | None]:
    """A shard's sidecar, and its tar under a temporary name, if it holds any sample."""
    modality = work.dataset.modality
    temporary = work.staging / f".{planned.digest}.{uuid4().hex}"
    try:
        with ShardWriter(temporary) as writer:
            outcomes = [work.convert(writer, entry) for entry in entries]
            seal = writer.finish()
    except BaseException:
        temporary.unlink(missing_ok=True)  # where the disk is full, it must not keep it so
        raise
    if writer.is_empty:
        temporary.unlink()
        return sidecar(modality, planned.digest, None, 0, outcomes), None
    return sidecar(modality, planned.digest, seal, writer.size_bytes, outcomes), temporary


def _keep(staging: Path, shard: str, table: Any, tar: Path | None) -> None:
    """Flush a shard's files to disk and give them their names; what cannot be flushed is removed, because the
    system reports that once, and asked again would call it flushed."""
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
