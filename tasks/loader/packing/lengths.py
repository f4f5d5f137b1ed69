"""How long each sample is to a recipe: what packs are planned by, measured once per version of a dataset.

The build cannot know it, because it depends on tokenizer and tiles. Each sample is read once, by all cores,
which takes minutes for a million samples. So a run's agent measures before it takes GPUs. The file is kept
beside the version, by a digest of all that decides on lengths, and every run links it: another learning rate
measures nothing again. A measurement that was killed is continued where it was, by whichever run.

Nothing is trained meanwhile: which samples share a row, and so which step a sample comes in, depends on the
lengths of a whole window of the shuffled dataset, and must be the same after a resume and on other ranks.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasks.core.errors import DataError
from tasks.core.files import digest, write_atomic
from tasks.core.lock import Lease
from tasks.core.process import available_cores, die_with_parent
from tasks.core.screen import Progress, no_progress
from tasks.dataset.version.layout import LENGTHS
from tasks.loader.bad import BadSampleError, Defect
from tasks.loader.forkserver import start_forkserver
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import Integers
from tasks.loader.packing.packs import UNMEASURED, Lengths

PAIR_BYTES = 8
CHUNK, LEAST_CHUNKS = 250, 8
"""The samples that a process measures at a time, between two progress reports; and the fewest chunks that are
worth further processes. A killed measurement loses about one chunk of each."""
FORM = 2
"""It rises when lengths are counted in another way."""
RUN = 100
"""Neighbouring samples on the disk that are measured together where not all samples are measured."""


class Measure(Protocol):
    """A transform that can count the tokens and images that it would make of a sample's members."""

    @property
    def shaped_by(self) -> str:
        """A digest of all that decides on these numbers beside the sample."""

    def measure(self, sample: Mapping[str, bytes]) -> tuple[int, int]: ...


def measure(
    readers: Sequence[IndexedReader],
    transform: Measure,
    folder: Path,
    most: int | None = None,
    progress: Progress = no_progress,
    processes: int | None = None,
) -> None:
    """Write the lengths of each dataset to `folder`, unless they are there already, by `processes`, as many
    as there are cores unless given.

    `most` limits the measured samples of each dataset to about as many; the others count as longer than any
    pack. BadSampleError or DataError for a sample that cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [_spread(len(reader), most) for reader in readers]
    total, before = sum(map(len, wanted)), 0
    for number, (reader, numbers) in enumerate(zip(readers, wanted, strict=True)):
        path = _file(folder, number)
        if not path.exists():
            tell = functools.partial(_tell, progress, before, total)
            measuring = _Measuring(reader, transform, numbers, processes or available_cores(), tell)
            kept = None if most is not None else _kept(reader, transform)
            if kept is None:
                measuring.write(path)
            else:
                measuring.write_once(kept)
                _link(kept, path)
        before += len(numbers)


def _tell(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total, "measuring how long samples are")


def _kept(reader: IndexedReader, transform: Measure) -> Path | None:
    """Return the file for these lengths beside the dataset's versions; None where nothing can be written
    there."""
    home = reader.version.resolve().parent.parent / LENGTHS
    try:
        home.mkdir(exist_ok=True)
        if not os.access(home, os.W_OK):
            return None
    except OSError:
        return None
    shape = digest([FORM, transform.shaped_by, reader.split, reader.excluded_digest])
    return home / f"{reader.version.resolve().name}-{shape[:12]}.npy"


def are_there(folder: Path, datasets: int) -> bool:
    """Return whether the samples of that many datasets have been measured."""
    return all(_file(folder, number).exists() for number in range(datasets))


def read_lengths(readers: Sequence[IndexedReader], folder: Path) -> tuple[Lengths, ...]:
    """Return what `measure` wrote; DataError for a file that is missing or belongs to another dataset."""
    found = []
    for number, reader in enumerate(readers):
        path = _file(folder, number)
        if not path.exists():
            raise DataError(f"{path}: is missing; the run's agent makes it before the ranks start")
        table = np.load(path, allow_pickle=False)
        if table.shape != (2, len(reader)):
            raise DataError(f"{path}: is not of {reader.version}; delete it and it is measured again")
        found.append(Lengths(*table))
    return tuple(found)


def _link(kept: Path, path: Path) -> None:
    """Give the run its own name of the file, or a copy on another file system."""
    try:
        path.hardlink_to(kept)
    except OSError:
        write_atomic(path, kept.read_bytes())


class _Measuring:
    """The measurement of some samples of a dataset."""

    def __init__(
        self,
        reader: IndexedReader,
        transform: Measure,
        numbers: Integers,
        processes: int,
        tell: Callable[[int], None],
    ) -> None:
        self._reader, self._transform, self._numbers = reader, transform, numbers
        self._processes, self._tell = processes, tell

    def write_once(self, path: Path) -> None:
        """Write the table, unless another run has done so meanwhile."""
        lease = Lease(path.with_suffix(".lease"))
        lease.wait()
        try:
            if not path.exists():
                self.write(path)
        finally:
            lease.release()

    def write(self, path: Path) -> None:
        """Write the table of lengths, going on where an earlier measurement ended."""
        draft = path.with_suffix(".part")
        with draft.open("ab") as file:
            done = file.tell() // PAIR_BYTES
            file.truncate(done * PAIR_BYTES)
            for pairs in self._pairs(self._numbers[done:]):
                file.write(pairs)
                file.flush()
                done += len(pairs) // PAIR_BYTES
                self._tell(done)
        write_atomic(path, _table(draft, self._numbers, len(self._reader)))
        draft.unlink()

    def _pairs(self, numbers: Integers) -> Iterator[bytes]:
        """The pairs of tokens and images of these samples, some at a time, in their order."""
        chunks = [numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK)]
        if self._processes == 1 or len(chunks) < LEAST_CHUNKS:
            _prepare(self._reader, self._transform)
            yield from map(_sound, map(_chunk, chunks))
            return
        with ProcessPoolExecutor(
            min(self._processes, len(chunks)),
            start_forkserver(),
            initializer=_prepare,
            initargs=(self._reader, self._transform),
        ) as pool:
            try:
                yield from map(_sound, pool.map(_chunk, chunks))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


_at_hand: list[Any] = []
"""A process's own reader and transform."""


def _prepare(reader: IndexedReader, transform: Measure) -> None:
    die_with_parent()
    _at_hand[:] = reader, transform


def _chunk(numbers: Integers) -> bytes | tuple[str, Defect]:
    """The pairs of some samples; of one that cannot be read the message and the defect, as that error cannot
    be sent."""
    reader, transform = _at_hand
    pairs = np.empty((len(numbers), 2), np.int32)
    try:
        for place, number in enumerate(numbers.tolist()):
            sample = reader.read(number)
            try:
                pairs[place] = transform.measure(sample.members)
            except DataError as error:
                raise reader.undecodable(number, sample, str(error)) from error
    except BadSampleError as error:
        return str(error), error.defect
    return pairs.tobytes()


def _sound(pairs: bytes | tuple[str, Defect]) -> bytes:
    if isinstance(pairs, bytes):
        return pairs
    raise BadSampleError(*pairs)


def _table(draft: Path, numbers: Integers, samples: int) -> bytes:
    """Return the lengths [2, samples] of the draft's pairs; a sample that is not among them gets the greatest
    length."""
    table = np.full((2, samples), UNMEASURED, np.int32)
    table[:, numbers] = np.fromfile(draft, np.int32).reshape(-1, 2).T
    content = io.BytesIO()
    np.save(content, table, allow_pickle=False)
    return content.getvalue()


def _spread(samples: int, most: int | None) -> Integers:
    """Return which samples are measured: all, or about `most` of them in runs at equal distances."""
    if most is None or samples <= most:
        return np.arange(samples)
    starts = np.linspace(0, samples - RUN, max(most // RUN, 1)).astype(np.int64)
    spread: Integers = np.unique(starts[:, None] + np.arange(RUN))
    return spread


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.npy"
