"""Planned shards to tars: all of them through the engine, each one idempotent in a worker process.

A tar and its sidecar are written to temporary names, flushed to disk and renamed, the sidecar last. So a
build that is killed or whose machine crashes loses at most the shards in hand. A worker has its tar flushed
while it still writes to it, so that little is left to wait for at the end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

from tasks.core.engines import map_groups
from tasks.core.errors import TarmacError
from tasks.core.files import digest, disk_full_as_error, fsync_path
from tasks.core.schema import Config, Dataset
from tasks.core.screen import Progress
from tasks.dataset.build.budget import Budget
from tasks.dataset.build.catalogue import NAME, Entry, reading
from tasks.dataset.build.fingerprint import members_digest
from tasks.dataset.build.shard_plan import PlannedShard
from tasks.dataset.build.sidecar import Outcome, columns_of, counted_reasons, holds_transient, sidecar
from tasks.dataset.build.spill import FOLDER, read_spilled
from tasks.dataset.build.staging import JOBS, RULES, sidecar_path, staged, tar_path
from tasks.dataset.modalities import MODALITIES, Modality
from tasks.dataset.rejects import TRANSIENT, Reject, printable
from tasks.dataset.sources import Absent, Source, of_files, open_sources
from tasks.dataset.tables import write_batch
from tasks.dataset.tar.writer import Members, ShardWriter

NOTE = "samples"
FLUSHED_BYTES = 4 << 20
"""A tar that has grown by so much is flushed again."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Conversion:
    """One planned shard of the catalogue in the folder `staging`, to be converted there by the rules in that
    folder, whose digest is `rules`."""

    staging: Path
    rules: str
    ordinal: int


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
    config: Config, staging: Path, rules: str, ordinals: Iterable[int], tally: Tally, progress: Progress
) -> Generator[int, None, None]:
    """Convert these shards of the catalogue in `staging` and yield each that is done; Exceeded as soon as the
    budget is certain to be passed."""

    def say(text: str) -> None:
        progress(tally.done, tally.total, f"{NOTE}; {text}")

    if tally.budget.is_exceeded:
        raise Exceeded
    work = (Conversion(staging, rules, ordinal) for ordinal in ordinals)
    for one in map_groups(convert, work, config.engine, folder=staging / JOBS, say=say):
        tally.add(one.ordinal, one.samples, one.rejects)
        progress(tally.done, tally.total, NOTE)
        if tally.budget.is_exceeded:
            raise Exceeded  # which ends the map: the shards in hand are finished, no more are begun
        yield one.ordinal


def convert(task: Conversion) -> Converted:
    """Convert one shard, unless it is there already."""
    with reading(task.staging / NAME) as catalogue:
        planned = catalogue.shard(task.ordinal)
        table = staged(task.staging, planned.digest)
        if table is None or holds_transient(table):
            with disk_full_as_error(task.staging):
                table = _write(converter(task.staging, task.rules), planned, catalogue.entries(planned))
    return Converted(task.ordinal, table.num_rows, counted_reasons(table))


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


def _write(work: Converter, planned: PlannedShard, entries: Sequence[Entry]) -> Any:
    modality = work.dataset.modality
    temporary = work.staging / f".{planned.digest}.{uuid4().hex}"
    seal = None
    try:
        with ShardWriter(temporary) as writer, _Flushing(temporary) as flushing:
            outcomes = []
            for entry in entries:
                outcomes.append(work.convert(writer, entry))
                flushing.note(writer.size_bytes)
            writer.end()
            columns = columns_of(modality, outcomes)  # while the last bytes are hashed
            if not writer.is_empty:
                seal = writer.finish()
                flushing.finish()
                os.replace(temporary, tar_path(work.staging, planned.digest))
        table = sidecar(modality, planned.digest, seal, writer.size_bytes if seal else 0, columns)
        write_batch(temporary, table)
        fsync_path(temporary)
        os.replace(temporary, sidecar_path(work.staging, planned.digest))
    except BaseException:
        temporary.unlink(missing_ok=True)  # where the disk is full, it must not keep it so
        raise
    return table


class _Flushing:
    """Flushes a file to disk, in a thread, while it is still written.

    An error of the disk is raised by `note` or `finish`: the system tells it once, and asked again would call
    the file flushed.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[None] | None = None
        self._asked_bytes = 0

    def note(self, size_bytes: int) -> None:
        """The file has this size by now."""
        if size_bytes - self._asked_bytes < FLUSHED_BYTES:
            return
        if self._pending is not None:
            if not self._pending.done():
                return
            self._pending.result()
        self._asked_bytes = size_bytes
        self._pending = self._thread.submit(os.fsync, self._descriptor)

    def finish(self) -> None:
        """All of the file is on disk when this returns."""
        if self._pending is not None:
            self._pending.result()
        os.fsync(self._descriptor)

    def __enter__(self) -> _Flushing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()
        os.close(self._descriptor)
