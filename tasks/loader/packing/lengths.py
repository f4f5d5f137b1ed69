"""How long each sample is to a recipe: what packs are planned by, measured once per run.

The build cannot know it, because it depends on tokenizer and tiles. Each sample is read once, which takes
minutes for a million samples. So a run's agent measures before the ranks start, or they would wait for one
another. A measurement that was killed continues where it was, and a complete one is not repeated.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from tasks.core.errors import DataError
from tasks.core.files import write_atomic
from tasks.core.screen import Progress, no_progress
from tasks.loader.indexed import IndexedReader
from tasks.loader.order import Integers
from tasks.loader.packing.packs import UNMEASURED, Lengths

PAIR_BYTES = 8
TOLD_EVERY = 100
"""Samples between two progress reports; a killed measurement loses about as many."""
RUN = 100
"""Neighbouring samples on the disk that are measured together where not all samples are measured."""


class Measure(Protocol):
    """A transform that can count the tokens and images that it would make of a sample's members."""

    def measure(self, sample: Mapping[str, bytes]) -> tuple[int, int]: ...


def measure(
    readers: Sequence[IndexedReader],
    transform: Measure,
    folder: Path,
    most: int | None = None,
    progress: Progress = no_progress,
) -> None:
    """Write the lengths of each dataset to `folder`, unless they are there already. `most` limits the
    measured samples of each dataset to about as many; the others count as longer than any pack.
    BadSampleError or DataError for a sample that cannot be read."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [_spread(len(reader), most) for reader in readers]
    total, before = sum(map(len, wanted)), 0
    for number, (reader, numbers) in enumerate(zip(readers, wanted, strict=True)):
        path = _file(folder, number)
        if not path.exists():
            draft = path.with_suffix(".part")
            for done in _measured(reader, transform, numbers, draft):
                progress(before + done, total, "measuring how long samples are")
            write_atomic(path, _table(draft, numbers, len(reader)))
            draft.unlink()
        before += len(numbers)


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


def _measured(reader: IndexedReader, transform: Measure, numbers: Integers, draft: Path) -> Iterator[int]:
    """Append the tokens and images of these samples to the draft, from its end on; return how many it then
    holds."""
    with draft.open("ab") as file:
        done = file.tell() // PAIR_BYTES
        file.truncate(done * PAIR_BYTES)
        for number in numbers[done:].tolist():
            sample = reader.read(number)
            try:
                pair = transform.measure(sample.members)
            except DataError as error:
                raise reader.undecodable(number, sample, str(error)) from error
            file.write(np.array(pair, np.int32).tobytes())
            done += 1
            if not done % TOLD_EVERY:
                file.flush()
                yield done


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
