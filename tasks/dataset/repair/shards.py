"""Make damaged shards whole: take them from another name, or put them together from sound spans and samples
that are converted again.

A shard takes its place only when it has the BLAKE3 that seals it, so no attempt on the way can spoil
anything. Spans whose CRC32C is the one in the index are kept; only the other samples need their source.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import google_crc32c
from blake3 import blake3

from tasks.core.errors import DataError
from tasks.core.files import CHUNK, blake3_file
from tasks.core.folders import LocalStore
from tasks.core.process import available_cores
from tasks.core.screen import Progress
from tasks.core.stores import is_environment_error
from tasks.core.threads import map_in_threads
from tasks.core.units import counted
from tasks.dataset.repair.contents import (
    NO_SPANS,
    UNREADABLE,
    Contents,
    ShardPlan,
    Spans,
    differing,
    not_converted,
    spans_of,
    worded,
)
from tasks.dataset.repair.result import BRING_BACK, CONFIGURE, MOVED, REBUILD, RETRY, Done, Failed, Way
from tasks.dataset.repair.source import BuildOrigin, ReconvertedShard, Reconverter
from tasks.dataset.repair.workplace import Workplace, inode, is_file, is_sealed
from tasks.dataset.tar.format import END
from tasks.dataset.version.build_info import FileSeal
from tasks.dataset.version.tables import ShardRecord, read_shards

FoundShard = tuple[Path, str, Way]
"""A file that holds a shard, how the shard is repaired with it, and in which way."""


@dataclass(frozen=True)
class ExaminedShard:
    """The file under a shard's name. `blake3` is None where the file cannot be read to its end; `sound` holds
    for each sample whether its bytes are as they were built."""

    path: Path
    blake3: str | None = None
    inode: tuple[int, int] = (0, 0)
    sound: Sequence[bool] = ()


@dataclass
class ShardRepair:
    """Repairs shards of a version whose `shards.parquet` is proven; `as_built` are those that need no
    repair."""

    place: Workplace
    records: Mapping[str, ShardRecord]
    origin: BuildOrigin
    progress: Progress
    done: list[Done] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    as_built: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)
    """Names that were in no table and have been removed."""

    def run(self, named: Iterable[str], extras: Sequence[str], afresh: Collection[str]) -> None:
        """Repair the shards that are `named`, convert those of `afresh` wholly from their source, and move
        the `extras`, which belong to no version, away."""
        records = [self.records[name] for name in sorted({*named, *afresh}) if name in self.records]
        self._total = len(records)
        files = self._examine(records, extras)
        seals = {path: found.blake3 for path, found in files.items()}
        sound = {one.name for one in records if seals.get(self._path(one)) == one.blake3}
        self.as_built = sound.difference(afresh)
        damaged = [one for one in records if one.name not in self.as_built]
        self._bad = {one.inode for one in files.values()}
        self._copies = _Copies(self.place, {record.blake3 for record in damaged})
        left = self._link([one for one in damaged if one.name not in afresh], files)
        left += [one for one in damaged if one.name in afresh]
        self._make(self._plans(left, files, afresh))
        self._clear(extras)

    def _path(self, record: ShardRecord) -> Path:
        return self.place.version / record.name

    def _good(self, record: ShardRecord) -> Path:
        return self.place.good / f"{record.blake3}.tar"

    def _examine(self, records: Sequence[ShardRecord], extras: Sequence[str]) -> dict[Path, ExaminedShard]:
        paths = [path for path in map(self.place.version.joinpath, extras) if is_file(path)]
        tasks: list[tuple[Path, Spans]] = [(path, NO_SPANS) for path in paths]
        for record in records:
            if is_file(self._path(record)):
                rows = self._contents.rows(record)
                tasks.append((self._path(record), NO_SPANS if rows is None else spans_of(rows)))
        files = {}
        for found in map_in_threads(examine_shard, tasks, available_cores()):
            files[found.path] = found
            self.progress(len(files), len(tasks), "shards examined")
        return files

    @cached_property
    def _contents(self) -> Contents:
        return Contents(self.place.version, self.records)

    def _link(self, records: Sequence[ShardRecord], files: Mapping[Path, ExaminedShard]) -> list[ShardRecord]:
        """Take the shards that lie in another file, and return those that do not. All files get a second name
        first, because what lies under one shard's name may be the content of another."""
        renamed: dict[str | None, FoundShard] = {
            one.blake3: (path, f"renamed back from {path.relative_to(self.place.version)}", "renamed")
            for path, one in files.items()
        }
        linked, left = [], []
        for record in records:
            source = renamed.get(record.blake3) or self._copies.find(record, self._bad)
            if source is None:
                left.append(record)
            else:
                path, how, way = source
                self.place.link(path, self._good(record))
                linked.append((record, how, way))
        for record, how, way in linked:
            self._install(record, how, way)
        return left

    def _plans(
        self, records: Iterable[ShardRecord], files: Mapping[Path, ExaminedShard], afresh: Collection[str]
    ) -> dict[str, ShardPlan]:
        plans = {}
        for record in records:
            rows = self._contents.rows(record)
            if rows is None:
                self._fail(record, "no table records which samples it held", REBUILD)
                continue
            found = None if record.name in afresh else files.get(self._path(record))
            plan = ShardPlan(record, rows, [False] * len(rows) if found is None else found.sound)
            if plan.needed and self.origin.lacking:
                self._fail(record, self.origin.lacking, CONFIGURE)
            else:
                plans[record.name] = plan
        return plans

    def _make(self, plans: Mapping[str, ShardPlan]) -> None:
        """Put the shards together; those that need no source come first."""
        for name, plan in plans.items():
            if not plan.needed:
                self._put_together(plan, ReconvertedShard(name))
        wanted = {name: plan.needed_column("key") for name, plan in plans.items() if plan.needed}
        if not wanted or self.origin.config is None:
            return
        files = {file for plan in plans.values() for file in plan.needed_column("file")}
        source = Reconverter(self.origin.config, self.place.staging, self.progress)
        finished = set()
        for conversion in source.convert(wanted, frozenset(filter(None, files))):
            if conversion.sidecar is None and source.trouble is not None:
                continue  # it may be in what could not be read
            finished.add(conversion.name)
            self._put_together(plans[conversion.name], conversion)
        for name in sorted(wanted.keys() - finished):
            plan = plans[name]
            needs = f"needs {len(plan.needed):,} of its {counted(len(plan.sound), 'sample')} from the source"
            reason = f"{needs}, which cannot be read: {source.trouble}"
            self._fail(plan.record, reason, MOVED, is_environment_error(source.trouble))

    def _put_together(self, plan: ShardPlan, conversion: ReconvertedShard) -> None:
        faults = not_converted(plan, conversion)
        total = len(plan.sound)
        if not faults and self._write(plan, conversion):
            count, samples = len(plan.needed), counted(total, "sample")
            how = f"{count:,} of {samples} converted again, the others were sound"
            if not count:
                how = "put together again: all its samples were sound"
            elif count == total:
                how = f"converted again: {samples}"
            self._install(plan.record, how, "converted" if count else "joined")
            return
        faults = faults or differing(plan, conversion, self.origin.changes)
        reason = worded(faults, total, self.origin.is_private) or "its tables contradict its seal"
        self._fail(plan.record, reason, BRING_BACK, is_environment=UNREADABLE in faults)

    def _write(self, plan: ShardPlan, conversion: ReconvertedShard) -> bool:
        """Write the shard from its sound spans and the converted ones; return whether it has its seal
        then."""
        temporary = self.place.temporary()
        running = blake3()
        try:
            with temporary.open("wb") as out:
                for part in _parts(plan, self._path(plan.record), conversion):
                    running.update(part)
                    out.write(part)
                out.flush()
                os.fsync(out.fileno())
            if running.hexdigest() != plan.record.blake3:
                return False
            os.replace(temporary, self._good(plan.record))
            return True
        finally:
            temporary.unlink(missing_ok=True)
            if conversion.tar is not None:
                conversion.tar.unlink(missing_ok=True)

    def _install(self, record: ShardRecord, how: str, way: Way) -> None:
        """Put the proven file in the shard's place, here and in other versions where it is damaged as well.
        This version comes last, so that a repair that is killed begins with the shard again."""
        for path in self._copies.to_mend(record, self._bad):
            self.place.link(self._good(record), path)
        self.place.link(self._good(record), self._path(record))
        self.done.append(Done(record.name, how, way))
        self._show_progress()

    def _fail(self, record: ShardRecord, reason: str, remedy: str, is_environment: bool = False) -> None:
        remedy = RETRY if is_environment else remedy
        self.failed.append(Failed(record.name, reason, remedy, is_environment))
        self._show_progress()

    def _show_progress(self) -> None:
        self.progress(len(self.done) + len(self.failed), self._total, "shards repaired")

    def _clear(self, extras: Iterable[str]) -> None:
        """Remove each name that is in no table where a shard is the same file; move any other file away."""
        shards = {inode(path) for path in map(self._path, self.records.values()) if extras and is_file(path)}
        for name in extras:
            path = self.place.version / name
            if is_file(path) and inode(path) in shards:
                path.unlink()
            elif os.path.lexists(path):
                self.place.move_away(name)
            self.cleared.add(name)


def examine_shard(task: tuple[Path, Spans]) -> ExaminedShard:
    """Read the file at a path and each of its spans; a span that the disk does not return is not sound."""
    path, spans = task
    folder, name = os.path.split(path)
    try:
        with LocalStore(folder).open(name) as file:
            found = os.fstat(file.fileno())
            sound = [_crc32c(file, int(offset), int(length)) == crc32c for offset, length, crc32c in spans]
    except (OSError, ValueError):
        return ExaminedShard(path, sound=[False] * len(spans))
    seal = None
    with contextlib.suppress(OSError):
        seal = blake3_file(path)
    return ExaminedShard(path, seal, (found.st_dev, found.st_ino), sound)


class _Copies:
    """The files in the dataset's other versions that should be shards with these seals."""

    def __init__(self, place: Workplace, wanted: set[str]) -> None:
        self._place = place
        self._files: dict[str, list[Path]] = defaultdict(list)
        for other in place.others if wanted else ():
            with contextlib.suppress(DataError):  # a repair of that version mends its table
                for record in read_shards(other):
                    if record.blake3 in wanted:
                        self._files[record.blake3].append(other / record.name)

    def find(self, record: ShardRecord, bad: set[tuple[int, int]]) -> FoundShard | None:
        """A proven copy; files of `bad` inodes have been examined already."""
        for path in self._files[record.blake3]:
            if _is_proven(path, record, bad):
                return path, f"linked from version {path.parents[1].name}", "linked"
        path = self._place.good / f"{record.blake3}.tar"
        return (path, "linked from a repair before", "linked") if _is_proven(path, record, bad) else None

    def to_mend(self, record: ShardRecord, bad: set[tuple[int, int]]) -> list[Path]:
        """The names in other versions whose file is damaged or gone, too."""
        return [path for path in self._files[record.blake3] if not _is_proven(path, record, bad)]


def _is_proven(path: Path, record: ShardRecord, bad: set[tuple[int, int]]) -> bool:
    seal = FileSeal(bytes=record.bytes, blake3=record.blake3)
    return is_file(path) and inode(path) not in bad and is_sealed(path, seal)


def _parts(plan: ShardPlan, damaged: Path, conversion: ReconvertedShard) -> Iterator[bytes]:
    """The bytes of the shard: the span of each sample, from its damaged file or from the converted one."""
    converted: Iterator[tuple[int, int]] = iter(())
    if conversion.sidecar is not None:
        spans = spans_of(conversion.sidecar)
        converted = ((int(offset), int(length)) for offset, length, _ in spans)
    files: dict[Path, BinaryIO] = {}
    try:
        for is_sound, (offset, length, _) in zip(plan.sound, plan.spans, strict=True):
            path = damaged if is_sound else conversion.tar
            assert path is not None
            if path not in files:
                files[path] = path.open("rb", buffering=0)
            start, count = (int(offset), int(length)) if is_sound else next(converted)
            yield from _chunks(files[path], start, count)
        yield END
    finally:
        for file in files.values():
            file.close()


def _chunks(file: BinaryIO, offset: int, length: int) -> Iterator[bytes]:
    """A span of a file; OSError where it has become shorter."""
    end = offset + length
    while offset < end:
        chunk = os.pread(file.fileno(), min(CHUNK, end - offset), offset)
        if not chunk:
            raise OSError("it has become shorter")
        offset += len(chunk)
        yield chunk


def _crc32c(file: BinaryIO, offset: int, length: int) -> int | None:
    """The CRC32C of a span; None when a part of it is missing or cannot be read."""
    running = 0
    try:
        for chunk in _chunks(file, offset, length):
            running = google_crc32c.extend(running, chunk)
    except OSError:
        return None
    return running
