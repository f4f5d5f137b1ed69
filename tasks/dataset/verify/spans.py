"""Where an index says that the samples of a shard are, and whether their bytes are those it was made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tasks.core.files import CHUNK


class Spans(NamedTuple):
    """A row for each sample, in order: its start, its stop, and the CRC32C of what is between."""

    starts: list[int]
    stops: list[int]
    checksums: list[int]

    @classmethod
    def of(cls, index: NDArray[np.void] | None) -> Spans | None:
        """None where there is no index, or one that no tar can fit to."""
        if index is None:
            return None
        starts: list[int] = index["offset"].tolist()
        stops: list[int] = (index["offset"] + index["length"]).tolist()
        is_sound = starts[1:] == stops[:-1] and starts[:1] in ([], [0]) and index["length"].all()
        return cls(starts, stops, index["crc32c"].tolist()) if is_sound else None

    @property
    def end(self) -> int:
        return self.stops[-1] if self.stops else 0

    def lost(self, end: int | None) -> range:
        """The rows that a tar which ends early, at `end`, does not hold whole."""
        count = len(self.stops)
        return range(count if end is None else bisect_right(self.stops, end), count)


NO_SPANS = Spans([], [], [])


def differing(file: BinaryIO, spans: Spans, count: int) -> Iterator[int]:
    """Those of the first `count` rows whose bytes are others than the index was made of. OSError."""
    for row in range(count):
        left = spans.stops[row] - spans.starts[row]
        crc32c = 0
        while left and (data := file.read(min(left, CHUNK))):
            crc32c = google_crc32c.extend(crc32c, data)
            left -= len(data)
        if left or crc32c != spans.checksums[row]:
            yield row
