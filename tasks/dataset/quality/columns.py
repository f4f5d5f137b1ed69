"""What a version's tables of samples record about quality, as one array per statistic over all splits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.core.errors import DataError
from tasks.core.screen import Progress, no_progress
from tasks.dataset.duplicates import LOOKS, MOST_COMPARED, NEEDED, Looks
from tasks.dataset.version.layout import samples_name
from tasks.dataset.version.tables import DAMAGED, read_pieces

NUMBERS = ("width", "height", "contrast", "sharpness", "border", "frames", "caption_length", "caption_words")
WORDS = ("colour", "label")
KNOWN = (*LOOKS, *NUMBERS, *WORDS)
MOST_WORDS = 1000
"""More different labels than this are no classes, and are not kept."""


class SampleRow(NamedTuple):
    """A sample by its place: row `row` of the split's index."""

    split: str
    row: int


@dataclass(frozen=True)
class SampleColumns:
    """The statistics of all samples of a version, split after split; only those that its tables have.

    `numbers` are float32 with NaN for what is unknown. `words` hold a code per sample and the words by code;
    -1 is unknown; of a statistic with more than MOST_WORDS, they hold only some. `looks` are None for a
    version without them.
    """

    splits: Mapping[str, int]
    numbers: Mapping[str, NDArray[np.float32]]
    words: Mapping[str, tuple[NDArray[np.int32], Sequence[str]]]
    looks: Looks | None

    def __len__(self) -> int:
        return sum(self.splits.values())

    def of_split(self) -> NDArray[np.int32]:
        """Return for each sample the number of its split, in the order of `splits`."""
        return np.repeat(np.arange(len(self.splits), dtype=np.int32), list(self.splits.values()))

    def place(self, number: int) -> SampleRow:
        """Return the place of a sample by its number in the arrays."""
        for split, samples in self.splits.items():
            if number < samples:
                return SampleRow(split, int(number))
            number -= samples
        raise IndexError(number)


def read_statistics(
    version: Path, splits: Mapping[str, int], progress: Progress = no_progress
) -> SampleColumns:
    """Read what there is of the statistics; `splits` has the number of samples per split. DataError if a
    table cannot be read, or holds another number of samples."""
    there = set.intersection(*(_columns_of(version / samples_name(split)) for split in splits), {*KNOWN})
    total = sum(splits.values())
    numbers = {name: np.full(total, np.nan, np.float32) for name in NUMBERS if name in there}
    codes = {name: (np.full(total, -1, np.int32), dict[str, int]()) for name in WORDS if name in there}
    wanted = sorted(there)

    def pieces() -> Iterator[Any]:
        start = 0
        for split, samples in splits.items():
            end = start + samples
            for piece in read_pieces(version / samples_name(split), wanted):
                rows = slice(start, start + piece.num_rows)
                if rows.stop > end:
                    break
                for name, numeric in numbers.items():
                    column = piece.column(name).cast(pa.float32()).fill_null(np.nan)
                    numeric[rows] = column.to_numpy(zero_copy_only=False)
                for name, (of_samples, known) in codes.items():
                    if len(known) > MOST_WORDS:
                        continue
                    of_samples[rows] = _codes(piece.column(name), known)
                yield piece
                start = rows.stop
                progress(start, total, "samples compared")
            if start != end:
                raise DataError(f"{samples_name(split)}: not {samples:,} rows; see `tarmac verify`")

    looks = None
    if there >= {*NEEDED} and total <= MOST_COMPARED:
        looks = Looks.of(pieces(), total)
    else:
        deque(pieces(), maxlen=0)
    words = {name: (of_samples, list(known)) for name, (of_samples, known) in codes.items()}
    return SampleColumns(splits, numbers, words, looks)


def _codes(column: Any, known: dict[str, int]) -> NDArray[np.int32]:
    encoded = column.dictionary_encode()
    numbers = [known.setdefault(word, len(known)) for word in encoded.dictionary.to_pylist()]
    codes = np.array([*numbers, -1], np.int32)
    of_rows: NDArray[np.int32] = codes[encoded.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)]
    return of_rows


def _columns_of(path: Path) -> set[str]:
    try:
        return set(pq.read_schema(path).names)
    except DAMAGED as error:
        problem = str(error).partition("\n")[0][:160]
        raise DataError(f"{path}: cannot be read ({problem}); see `tarmac verify`") from None
