"""One pass over a shard: its samples as columns, its checksum and its damage; and the spans of the index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import google_crc32c
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tasks.core.files import CHUNK
from tasks.core.stores import Unreachable
from tasks.dataset.tar.reader import Cut, Gap, Member, StoredSample, TarReader, group_samples
from tasks.dataset.verify.decode import Decoder
from tasks.dataset.verify.report import Fix
from tasks.dataset.verify.tars import open_tar

if TYPE_CHECKING:
    from tasks.dataset.verify.shard import ShardTask

MOST_HELD = 4 << 30
"""Bytes of a sample's contents that are held to be decoded."""
UNSAFE = "remove it: a shard holds plain files only"
EMPTY = {"bytes": 0}

Suffixes = tuple[str, ...]


class Note(NamedTuple):
    """A fault of the sample with this number."""

    number: int
    code: str
    member: str | None
    evidence: dict[str, Any]
    fix: Fix | str = Fix.SHARD


class ShardScan:
    """One pass over a shard: its samples as columns, which fit in memory by the million, its damage.

    `sets` are numbers of `suffixes`, as most samples have the same members. `torn` samples may have lost
    members to damage, `odd` ones hold nothing but what is no plain file. `error` is why the tar could not be
    read to its end; when `is_forbidden`, that is no fault of the tar.
    """

    def __init__(self, task: ShardTask, spans: Spans) -> None:
        self.keys: list[str] = []
        self.starts: list[int] = []
        self.sets: list[int] = []
        self.suffixes: list[Suffixes] = []
        self.torn: set[int] = set()
        self.odd: set[int] = set()
        self.notes: list[Note] = []
        self.decoder = Decoder(task.modality) if task.decodes else None
        self.cut: Cut | None = None
        self.gap: Gap | None = None
        """The first of them; `gaps` counts them."""
        self.gaps = 0
        self.blake3: str | None = None
        self.size_bytes = 0
        self.error: str | None = None
        self.is_absent = self.is_forbidden = False
        self._numbers: dict[Suffixes, int] = {}
        self._held = ("", 0)
        try:
            with open_tar(task.folder, task.name) as file:
                self._read(file, task, spans)
        except FileNotFoundError:
            self.is_absent = True
        except Unreachable:
            raise
        except OSError as error:
            place = f" at byte {self.size_bytes:,}" if self.size_bytes else ""
            self.error = f"unreadable{place}: {error.strerror or error}"
            self.is_forbidden = isinstance(error, PermissionError)

    def _read(self, file: BinaryIO, task: ShardTask, spans: Spans) -> None:
        hashed = _HashedReads(file) if task.is_own else file
        keeps = None if self.decoder is None else self._keeps
        reader = TarReader(hashed, keeps, is_own=task.is_own, least=spans.end)  # type: ignore[arg-type]
        try:
            for found in group_samples(reader, frozenset(spans.starts)):
                if isinstance(found, StoredSample):
                    self._add(found)
                elif isinstance(found, Gap):
                    self.gap = self.gap or found
                    self.gaps += 1
                else:
                    self.cut = found
        finally:
            self.size_bytes = reader.offset
        if isinstance(hashed, _HashedReads):
            self.blake3, self.size_bytes = hashed.finish()

    def _keeps(self, member: Member) -> bool:
        key, held = self._held
        held = member.size + (held if member.key == key else 0)
        self._held = member.key, held
        return held <= MOST_HELD

    def _add(self, sample: StoredSample) -> None:
        number = len(self.keys)
        suffixes = tuple(member.suffix for member in sample.members)
        self.keys.append(sample.key)
        self.starts.append(sample.start)
        known = self._numbers.setdefault(suffixes, len(self.suffixes))
        if known == len(self.suffixes):
            self.suffixes.append(suffixes)
        self.sets.append(known)
        if sample.is_torn:
            self.torn.add(number)
        odd = 0
        for member in sample.members:
            if member.oddity is not None:
                odd += 1
                self.notes.append(
                    Note(number, "member.unsafe", member.suffix, {"problem": member.oddity}, UNSAFE)
                )
            elif not member.size:
                self.notes.append(Note(number, "member.empty", member.suffix, EMPTY))
        if odd == len(suffixes):
            self.odd.add(number)
        if self.decoder is not None and not sample.is_torn:
            self._decode(number, sample, self.decoder)

    def _decode(self, number: int, sample: StoredSample, decoder: Decoder) -> None:
        plain_ones = [member for member in sample.members if member.oddity is None and member.size]
        contents = {one.suffix: one.content for one in plain_ones if one.content is not None}
        if len(contents) < len({one.suffix for one in plain_ones}):  # too large to be held together
            for one in plain_ones:
                decoder.leave_out(one.suffix)
            return
        for found in decoder.judge(contents) if contents else ():
            self.notes.append(Note(number, found.code, found.member, {"problem": found.evidence}))


class _HashedReads:
    """A file whose reads go into its BLAKE3 as well."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = blake3()
        self._count = 0

    def readinto(self, buffer: memoryview) -> int:
        count: int = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._digest.update(buffer[:count])
        self._count += count
        return count

    def finish(self) -> tuple[str, int]:
        """The whole file's BLAKE3 and size, after what is left has been read."""
        buffer = memoryview(bytearray(CHUNK))
        while self.readinto(buffer):
            pass
        return self._digest.hexdigest(), self._count


class Spans(NamedTuple):
    """A row for each sample, in order: its start, its stop, and the CRC32C of what is between."""

    starts: list[int]
    stops: list[int]
    checksums: list[int]

    @classmethod
    def of(cls, index: NDArray[np.void] | None) -> Spans:
        """No rows where there is no index, or one that no tar can fit to."""
        if index is None:
            return NO_SPANS
        starts: list[int] = index["offset"].tolist()
        stops: list[int] = (index["offset"] + index["length"]).tolist()
        is_sound = starts[1:] == stops[:-1] and starts[:1] in ([], [0]) and index["length"].all()
        return cls(starts, stops, index["crc32c"].tolist()) if is_sound else NO_SPANS

    @property
    def end(self) -> int:
        return self.stops[-1] if self.stops else 0

    def lost(self, end: int | None) -> range:
        """The rows that a tar which ends early, at `end`, does not hold whole."""
        count = len(self.stops)
        return range(count if end is None else bisect_right(self.stops, end), count)

    def differing(self, file: BinaryIO, count: int) -> Iterator[int]:
        """Those of the first `count` rows whose bytes are others than the index was made of. OSError."""
        for row in range(count):
            left = self.stops[row] - self.starts[row]
            crc32c = 0
            while left and (data := file.read(min(left, CHUNK))):
                crc32c = google_crc32c.extend(crc32c, data)
                left -= len(data)
            if left or crc32c != self.checksums[row]:
                yield row


NO_SPANS = Spans([], [], [])
