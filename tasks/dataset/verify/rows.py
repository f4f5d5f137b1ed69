"""Which row of the tables a sample of the tar is, and what the row says of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from tasks.dataset.verify.collected import Collected
from tasks.dataset.verify.faults import REBUILD, REMAKE, plain
from tasks.dataset.verify.records import SampleFault, Task
from tasks.dataset.verify.spans import NO_SPANS, Spans

SHORT = 100


class Rows:
    """A sample is the row of its place where the key agrees, else that of its key, else that of its place
    unless that row's own sample is elsewhere in the tar. Without tables it is the row of its number."""

    def __init__(self, task: Task, spans: Spans | None, samples: Collected) -> None:
        self._samples = samples
        self._split = task.expected.split if task.expected else ""
        self._keys = task.keys or ()
        self._has_tables = spans is not None or task.keys is not None
        self._spans = spans or NO_SPANS
        self._by_start = {start: row for row, start in enumerate(self._spans.starts)}
        self._by_key = {key: row for row, key in enumerate(self._keys)}
        self._there = frozenset(map(decoded, samples.keys)) if self._has_tables else frozenset()

    def of(self, number: int) -> tuple[int | None, str]:
        """Row and key of a sample, the key by the tables, else by the tar."""
        key = self._samples.keys[number]
        row = self._row(decoded(key), self._samples.starts[number]) if self._has_tables else number
        return row, self._named(row) or shown(key)

    def _row(self, key: str, start: int) -> int | None:
        row = self._by_start.get(start)
        named = self._named(row)
        if row is not None and named in (None, key):
            return row
        return self._by_key.get(key, None if named in self._there else row)

    def _named(self, row: int | None) -> str | None:
        return None if row is None or row >= len(self._keys) else self._keys[row]

    def of_differing(self, rows: list[int], is_sound: bool) -> Iterator[SampleFault]:
        """`is_sound` says that the tar's BLAKE3 is the right one: then the index is wrong."""
        code, remedy = ("index.mismatch", REBUILD) if is_sound else ("member.checksum", REMAKE)
        for row in rows:
            evidence = {"row": row, "problem": "CRC32C differs from the index"}
            yield SampleFault(code, self._named(row) or self._found(row), None, remedy, evidence, row)

    def _found(self, row: int) -> str | None:
        """The key of the first sample that the tar has in the row's place."""
        number = bisect_left(self._samples.starts, self._spans.starts[row])
        is_within = (
            number < len(self._samples.starts) and self._samples.starts[number] < self._spans.stops[row]
        )
        return shown(self._samples.keys[number]) if is_within else None

    def of_keys(self, differing: set[int]) -> Iterator[SampleFault]:
        """Rows in whose place the tar holds a sample of another key, though the bytes are the right ones."""
        for key, start in zip(self._samples.keys, self._samples.starts, strict=True):
            row = self._by_start.get(start)
            named = self._named(row)
            if row is not None and named is not None and row not in differing and decoded(key) != named:
                problem = f"samples/{self._split}.parquet differs: the tar holds {shown(key)!r} in this place"
                yield SampleFault("manifest.invalid", named, None, REBUILD, {"problem": problem}, row)


def decoded(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")


def shown(key: bytes) -> str:
    text = decoded(key)
    return text if len(text) <= SHORT and text.isprintable() else plain(text)
