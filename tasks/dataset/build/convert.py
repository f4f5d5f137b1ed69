"""Planned shards to tars: all of them through the engine, each one idempotent in a worker process.

A tar and its sidecar are written to temporary names, flushed to disk and renamed, the sidecar last. So a
build that is killed or whose machine crashes loses at most the shards in hand. A worker flushes a shard while
it converts the next, so it is handed a few small ones at a time, or a large one alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from tasks.core.engines import map_groups
from tasks.core.errors import TarmacError
from tasks.core.files import digest, disk_full_as_error, fsync_path
from tasks.core.schema import Config, Dataset
from tasks.core.screen import Progress
from tasks.dataset.build.budget import Budget
from tasks.dataset.build.catalogue import NAME, Catalogue, Entry, reading
from tasks.dataset.build.fingerprint import members_digest
from tasks.dataset.build.shard_plan import PlannedShard
from tasks.dataset.build.sidecar import Outcome, columns_of, counted_reasons, holds_transient, sidecar
from tasks.dataset.build.spill import FOLDER, read_spilled
from tasks.dataset.build.staging import JOBS, RULES, sidecar_path, staged, tar_path
from tasks.dataset.modalities import MODALITIES, Modality
from tasks.dataset.rejects import TRANSIENT, Reject, printable
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
    folder, whose digest is `rules`."""

    staging: Path
    rules: str
    ordinals: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Converted:
    """A shard that is done: how many raw samples it was made of, and the rejects among them by reason."""

    ordinal: int
    samples: int
    rejects: Mapping[str, int]


class Exceeded(Exception):
    """There are more rejects than the budget has room for."""


@dataclass
class Tally:
    """The raw samples that were looked at, of all that are to be, and the shards that hold rejects."""

    budget: Budget
    total: int
    done: int = 0
    rejecting: list[int] = field(default_factory=list)

    def add(self, ordinal: int, samples: int, rejects: Mapping[str, int]) -> None:
        self.done += samples
        self.budget.add(rejects)
        if rejects:
            self.rejecting.append(ordinal)


def convert_all(
    config: Config,
    catalogue: Catalogue,
    rules: str,
    ordinals: Sequence[int],
    tally: Tally,
    progress: Progress,
) -> Generator[int, None, None]:
    """Convert these shards into the catalogue's folder and yield each that is done; Exceeded as soon as the
    budget is certain to be passed."""
    staging = catalogue.path.parent

    def say(text: str) -> None:
        progress(tally.done, tally.total, f"{NOTE}; {text}")

    if tally.budget.is_exceeded:
        raise Exceeded
    at_once = _at_once(config, catalogue, len(ordinals))
    tasks = (
        Conversion(staging, rules, tuple(ordinals[start : start + at_once]))
        for start in range(0, len(ordinals), at_once)
    )
    for converted in map_groups(convert, tasks, config.engine, folder=staging / JOBS, say=say):
        for one in converted:
            tally.add(one.ordinal, one.samples, one.rejects)
        progress(tally.done, tally.total, NOTE)
        if tally.budget.is_exceeded:
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
    flushing: Future[None] | None = None
    with (
        reading(task.staging / NAME) as catalogue,
        disk_full_as_error(task.staging),
        ThreadPoolExecutor(1) as thread,
    ):
        for planned in map(catalogue.shard, task.ordinals):
            table = staged(task.staging, planned.digest)
            if table is None or holds_transient(table):
                work = converter(task.staging, task.rules)
                table, tar = _write(work, planned, catalogue.entries(planned))
                before, flushing = flushing, thread.submit(_keep, task.staging, planned.digest, table, tar)
                if before is not None:
                    before.result()
            done.append(Converted(planned.ordinal, table.num_rows, counted_reasons(table)))
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

    def raw(self, entry: Entry) -> Members:
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

    def convert(self, writer: ShardWriter, entry: Entry) -> Outcome:
        """Append the sample to the tar if it can be taken."""
        content = None
        try:
            raw = self.raw(entry)
            content = content_digest(entry, raw)
            taken = self.modality.take(raw, self.dataset)
            span = writer.add(entry.key, taken.members)
        except Reject as reject:
            return Outcome(entry, None, content, {}, reject)
        except MemoryError:
            raise TarmacError(
                f"{printable(entry.place)}: there is not enough memory on this machine to convert it; give "
                "engine.build.workers a smaller number, or dataset.image.max_pixels one that refuses it"
            ) from None
        except (OSError, TarmacError):
            raise  # of this host, or of the source as a whole
        except Exception as error:  # noqa: BLE001 - decoders are fed hostile bytes: one sample, never the build
            detail = _ADDRESS.sub("", f"{type(error).__name__}: {error}")[:200]
            return Outcome(entry, None, content, {}, Reject(self.modality.undecodable, detail))
        return Outcome(entry, span, content, taken.statistics, None)


@lru_cache(maxsize=1)
def converter(staging: Path, rules: str) -> Converter:
    """What converts by the rules in `staging`; TarmacError when those there have another digest, as a shared
    file system may show them to another machine for some seconds."""
    content = (staging / RULES).read_bytes()
    if digest(content.decode()) != rules:
        raise TarmacError(f"{staging / RULES} is not up to date on this machine; build again")
    dataset = Dataset.model_validate_json(content)
    return Converter(dataset, open_sources(dataset), MODALITIES[dataset.modality], staging)


def content_digest(entry: Entry, raw: Members) -> bytes:
    """Of the sample as it came: its original key and raw members, not times or places."""
    return bytes(members_digest(raw, entry.key, entry.original_key).digest())


def _write(work: Converter, planned: PlannedShard, entries: Sequence[Entry]) -> tuple[Any, Path | None]:
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
    columns = columns_of(modality, outcomes)
    if writer.is_empty:
        temporary.unlink()
        return sidecar(modality, planned.digest, None, 0, columns), None
    return sidecar(modality, planned.digest, seal, writer.size_bytes, columns), temporary


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
