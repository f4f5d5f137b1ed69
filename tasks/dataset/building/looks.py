"""What raw samples look like before they are built, for `splits: {group_by: content}`.

Splits are decided before samples are converted, so each is measured once more, before: the price is about a
second decoding. What was measured is kept in a folder of the dataset by the sample's identity and the rules
that shape what is measured, so a build measures only what is new. Every worker's task leaves a file there, so
a kill costs the tasks in progress; then the build makes one file of them all, without the samples that have
gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tasks.core.engines import map_groups
from tasks.core.errors import UsageError
from tasks.core.files import disk_full_as_error, fsync_path
from tasks.core.schema import Config
from tasks.core.screen import Progress
from tasks.core.units import count
from tasks.dataset import duplicates
from tasks.dataset.building.conversion.convert import TASK_BYTES, TASKS_PER_WORKER, converter, workers_of
from tasks.dataset.building.conversion.staging import JOBS, write_rules
from tasks.dataset.building.fingerprint import rules_digest
from tasks.dataset.building.listed.catalogue import NAME, Catalogue
from tasks.dataset.duplicates import Looks, Rows, equal
from tasks.dataset.formats.measures import FINE_BYTES, SPECTRUM_BYTES
from tasks.dataset.modalities.base import Statistics
from tasks.dataset.version.layout import LOOKS
from tasks.dataset.version.rejects import PASSING, Reject
from tasks.dataset.version.tables import DAMAGED, ArrowBatches, BatchWriter

AT_ONCE = 2048
"""Samples per task at most, and per batch of the file that is made of all."""
NOTE = "samples measured for splits.group_by: content"
SCHEMA = pa.schema(
    {
        "identity": pa.binary(16),
        **dict.fromkeys(("content_hash", "text_hash", "phash"), pa.uint64()),
        "phash_fine": pa.binary(FINE_BYTES),
        "spectrum": pa.binary(SPECTRUM_BYTES),
        "contrast": pa.float32(),
    }
)


@dataclass(frozen=True, slots=True)
class LookTask:
    """A worker's task: to measure the listed samples with these numbers and identities, by the rules with the
    digest `rules`, into the file `target`."""

    staging: Path
    rules: str
    numbers: tuple[int, ...]
    identities: bytes
    target: Path


class RawLooks:
    """What the listed samples of a catalogue look like: the looks of sample number `numbers[row]` are in that
    row, as far as `is_known`.

    The constructor reads what earlier builds have measured, and writes nothing. `origins` are the digests of
    the sources. UsageError for a source whose pictures lie at web addresses, and for more samples than can be
    compared in memory.
    """

    def __init__(self, config: Config, catalogue: Catalogue, origins: Sequence[str]) -> None:
        _require_comparable(catalogue)
        self._catalogue = catalogue
        self._folder = config.dataset.output / LOOKS
        listed = catalogue.listed
        self.numbers, self._sizes = np.empty(listed, np.int64), np.empty(listed, np.int64)
        shape = rules_digest(config.dataset, with_filters=False)
        prefixes = [f"{shape}\0{origin}\0".encode() for origin in origins]
        identities = bytearray()
        for row, entry in enumerate(catalogue.every_listed()):
            identities += xxhash.xxh3_128_digest(prefixes[entry.source] + entry.identity)  # of no group yet
            self.numbers[row], self._sizes[row] = entry.number, max(entry.size, 0)
        self._identities = np.frombuffer(identities, np.uint64).reshape(-1, 2)
        self._firsts = equal(*self._identities.T)
        self._order = np.lexsort(self._identities.T)
        self._leading = self._identities[self._order, 1]  # by which, above all, they are ordered
        self._begin()
        for path in self._folder.glob("*.arrow"):
            self._read(path)

    def _begin(self) -> None:
        self.looks, self.is_known = Looks.unknown(len(self.numbers)), np.zeros(len(self.numbers), bool)
        self._files: list[Path] = []
        self._rows_read = 0

    @property
    def missing(self) -> Rows:
        """The rows that are to be measured; of samples with one identity the first."""
        return np.flatnonzero(~self.is_known & (self._firsts == np.arange(len(self.numbers))))

    def measure(self, config: Config, progress: Progress, *, anew: bool = False) -> None:
        """Measure what is missing, or everything `anew`, and keep it. What could not be read for a cause that
        may pass stays missing; the catalogue's fact `unmeasured` counts that."""
        self._folder.mkdir(exist_ok=True)
        if anew:
            for path in self._files:
                path.unlink()
            self._begin()
        if config.engine.build.kind != "local":
            fsync_path(self._catalogue.path)  # so that workers on other machines see all of it
        tasks, total, done = self._tasks(config), len(self.missing), 0
        folder = self._catalogue.path.parent / JOBS
        with closing(map_groups(measure_looks, tasks, config.engine, folder=folder)) as results:
            for path, samples in results:
                self._read(path)
                done += samples
                progress(done, total, NOTE)
        self._catalogue.note("unmeasured", len(self.missing))
        self._gather()

    def _tasks(self, config: Config) -> Iterator[LookTask]:
        staging = self._catalogue.path.parent
        rules, missing = write_rules(staging, config.dataset), self.missing
        most = min(AT_ONCE, max(1, len(missing) // (TASKS_PER_WORKER * workers_of(config))))
        ends, start = np.cumsum(self._sizes[missing]), 0
        while start < len(missing):
            before = ends[start - 1] if start else 0
            by_bytes = int(np.searchsorted(ends, before + TASK_BYTES, "right"))
            stop = max(start + 1, min(start + most, by_bytes))
            some = missing[start:stop]
            target = self._folder / f"{uuid4().hex}.arrow"
            numbers = tuple(self.numbers[some].tolist())
            yield LookTask(staging, rules, numbers, self._identities[some].tobytes(), target)
            start = stop

    def _read(self, path: Path) -> None:
        """Take over what a file holds of the listed samples, unless it is torn or of another Tarmac."""
        self._files.append(path)
        with suppress(*DAMAGED):
            for table in ArrowBatches(path) if len(self._leading) else ():
                self._rows_read += table.num_rows
                found = np.frombuffer(b"".join(table.column("identity").to_pylist()), np.uint64).reshape(
                    -1, 2
                )
                at = np.searchsorted(self._leading, found[:, 1])
                rows = self._firsts[self._order[np.minimum(at, len(self._leading) - 1)]]
                is_listed = (self._identities[rows] == found).all(axis=1)
                self.looks.put(rows[is_listed], table.filter(pa.array(is_listed)))
                self.is_known[rows[is_listed]] = True

    def _gather(self) -> None:
        """Make one file of all that hold what is known, and remove what else lies in the folder."""
        rows = np.flatnonzero(self.is_known & (self._firsts == np.arange(len(self.numbers))))
        if len(self._files) == 1 and self._rows_read == len(rows):
            return
        target = self._folder / f"{uuid4().hex}.arrow"
        starts = range(0, len(rows), AT_ONCE)
        _write(target, (self._table(rows[start : start + AT_ONCE]) for start in starts))
        for path in self._folder.iterdir():
            if path != target:
                path.unlink()

    def _table(self, rows: Rows) -> Any:
        looks = self.looks
        return pa.table(
            [
                _fixed(self._identities[rows], 16),
                *(pa.array(one[rows]) for one in (looks.content, looks.text, looks.coarse)),
                _fixed(looks.fine[rows], FINE_BYTES),
                _fixed(looks.spectrum[rows], SPECTRUM_BYTES),
                pa.array(looks.contrast[rows]),
            ],
            SCHEMA,
        )


def measure_looks(task: LookTask) -> tuple[Path, int]:
    """Measure the samples of a task, and return its file and their number. A sample without a picture that
    can be decoded has an empty look, and the conversion reports it; one that cannot be read now has none."""
    rows = []
    work = converter(task.staging, task.rules)
    with closing(Catalogue(task.staging / NAME, reads_only=True)) as catalogue:
        for place, entry in enumerate(catalogue.listed_as(task.numbers)):
            statistics: Statistics = {}
            try:
                with work.rejecting(entry):
                    statistics = work.modality.take(work.raw(entry), work.dataset).statistics
            except Reject as reject:
                if reject.reason in PASSING:
                    continue
            identity = task.identities[16 * place : 16 * (place + 1)]
            rows.append({"identity": identity, **{name: statistics.get(name) for name in duplicates.LOOKS}})
    _write(task.target, [pa.Table.from_pylist(rows, SCHEMA)] if rows else [])
    return task.target, len(task.numbers)


def _write(target: Path, tables: Iterable[Any]) -> None:
    temporary = target.with_name(f".{uuid4().hex}.tmp")
    try:
        with disk_full_as_error(target.parent), BatchWriter(temporary, SCHEMA) as writer:
            for table in tables:
                writer.write(table)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _fixed(values: NDArray[Any], size: int) -> Any:
    content = pa.py_buffer(np.ascontiguousarray(values).tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(values), [None, content])


def _require_comparable(catalogue: Catalogue) -> None:
    if catalogue.fact("addresses"):
        raise UsageError(
            "dataset.splits.group_by: content needs each picture before the build, and this source fetches "
            "its pictures; build it without, then build a dataset from its shards (kind: shards) with it"
        )
    if catalogue.listed > duplicates.MOST_COMPARED:
        raise UsageError(
            "dataset.splits.group_by: content compares all samples in memory, and "
            f"{count(catalogue.listed)} are more than {count(duplicates.MOST_COMPARED)}; group them by a "
            "column of the source, or build several datasets"
        )
