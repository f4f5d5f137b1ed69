"""One pass over a shard, which finds its samples, checksum and damage and decodes its members; and the spans
of the index."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tasks.core.errors import UsageError
from tasks.core.files import CHUNK
from tasks.core.stores import StoreUnreachable
from tasks.dataset import modalities
from tasks.dataset.formats import Unjudged
from tasks.dataset.formats.checks import LONGEST, is_pickle, problem_of, worded
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.tar.reader import Cut, Gap, Member, StoredSample, TarReader, group_samples
from tasks.dataset.verify.findings import Fix
from tasks.dataset.verify.tars import HashedReads, open_file, open_tar

MOST_HELD = 4 << 30
"""At most this many bytes of one sample are held to be decoded."""
MOST_UNDECODED = 100
"""At most this many ends of suffixes are recorded as not decoded."""
EMPTY = {"bytes": 0}
UNSAFE = "remove it: a shard holds plain files only"
_NUMBERED = re.compile(r"\d{3}(\.\w+)?")
"""The suffixes of the images of a conversation."""

Suffixes = tuple[str, ...]


@dataclass(frozen=True)
class ShardTask:
    """A shard to examine: `name` relative to `folder`, which is local or remote.

    `blake3`, `samples`, `index` and `keys` come from the version's tables, and are None without such a table.
    `compares` means that index and keys have no seal and have to be compared with the tar. `decodes` is set
    at the level full.
    """

    folder: str
    name: str
    blake3: str | None = None
    samples: int | None = None
    index: NDArray[np.void] | None = None
    keys: Sequence[str] | None = None
    compares: bool = False
    is_own: bool = False
    modality: str | None = None
    decodes: bool = False

    @property
    def split(self) -> str:
        return self.name.rpartition("/")[0]


class NumberedFault(NamedTuple):
    """A fault of the sample with this number in the tar, or with this row in the index."""

    number: int
    code: str
    member: str | None
    evidence: Mapping[str, Any]
    fix: Fix | str = Fix.SHARD


class ShardScan:
    """One pass over a shard: its samples as columns, which fit in memory by the million, and its damage.

    `torn` samples may have lost members to damage; `odd` samples hold no regular file. `error` is why the tar
    could not be read to its end, a FileNotFoundError where it does not exist. `differing` are the rows of the
    index whose samples are not as they were built; where the tar is, they are looked for only if the task
    compares.
    """

    def __init__(self, task: ShardTask) -> None:
        self.task = task
        self.spans = Spans.of(task.index)
        self.keys: list[str] = []
        self.starts: list[int] = []
        self.suffixes: list[Suffixes] = []
        self.torn: set[int] = set()
        self.odd: set[int] = set()
        self.notes: list[NumberedFault] = []
        self.decoder = Decoder(task.modality) if task.decodes else None
        self.cut: Cut | None = None
        self.gap: Gap | None = None
        """The first gap; `gaps` counts them."""
        self.gaps = 0
        self.blake3: str | None = None
        self.size_bytes = 0
        self.error: OSError | None = None
        self.differing: Sequence[int] = ()
        self._sets: dict[Suffixes, Suffixes] = {}
        """One shared tuple for all samples with the same members."""
        self._held = ("", 0)
        try:
            with open_tar(task.folder, task.name) as file:
                self._read(file)
        except StoreUnreachable:
            raise
        except OSError as error:
            self.error = error
        if self.spans.starts and (task.compares or not self.is_as_built):
            with contextlib.suppress(OSError), open_file(task.folder, task.name) as file:
                self.differing = list(self.spans.differing(file, self.lost.start))

    @property
    def is_as_built(self) -> bool:
        return self.task.blake3 is not None and self.blake3 == self.task.blake3

    @property
    def lost(self) -> range:
        """The rows of the index that the tar does not hold whole."""
        return self.spans.lost(self.cut.offset if self.cut else self.size_bytes if self.error else None)

    def _read(self, file: BinaryIO) -> None:
        is_own = self.task.is_own
        hashed = HashedReads(file) if is_own or self.task.blake3 is not None else file
        keeps = None if self.decoder is None else self._keeps
        reader = TarReader(hashed, keeps, is_own=is_own, least=self.spans.end)  # type: ignore[arg-type]
        try:
            for found in group_samples(reader, frozenset(self.spans.starts)):
                if isinstance(found, StoredSample):
                    self._add(found)
                elif isinstance(found, Gap):
                    self.gap = self.gap or found
                    self.gaps += 1
                else:
                    self.cut = found
        finally:
            self.size_bytes = reader.offset
        if isinstance(hashed, HashedReads):
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
        self.suffixes.append(self._sets.setdefault(suffixes, suffixes))
        if sample.is_torn:
            self.torn.add(number)
        for member in sample.members:
            if member.oddity is not None:
                evidence = {"problem": member.oddity}
                self.notes.append(NumberedFault(number, "member.unsafe", member.suffix, evidence, UNSAFE))
            elif not member.size:
                self.notes.append(NumberedFault(number, "member.empty", member.suffix, EMPTY))
        if all(member.oddity is not None for member in sample.members):
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
            self.notes.append(NumberedFault(number, found.code, found.member, {"problem": found.evidence}))


class Decoder:
    """Decodes the members of a sample, by the modality's rules where there are any, else by their suffixes.

    `undecoded` holds the ends of the suffixes that no decoder knows.
    """

    def __init__(self, modality: str | None) -> None:
        self._modality = MODALITIES.get(modality or "")
        self._is_numbered = modality == "chat"
        self._of_modality: set[str] = set()
        if self._modality is not None:
            self._of_modality = {
                "json",
                *(choice for choices in self._modality.required for choice in choices),
            }
        self.undecoded: set[str] = set()

    def judge(self, contents: Mapping[str, bytes]) -> Iterator[modalities.MemberFault]:
        """The faults of the members, none of which is empty."""
        if self._modality is not None:
            try:
                yield from self._modality.judge(contents)
            except UsageError:
                raise  # a package is missing, which is not the data's fault
            except Exception as error:  # noqa: BLE001 - hostile content may raise anything and must not crash
                yield modalities.MemberFault("member.undecodable", " ".join(sorted(contents)), worded(error))
            self.undecoded.update(suffix for suffix in self._modality.unjudged() if suffix in contents)
        for suffix, content in contents.items():
            if suffix in self._of_modality or is_pickle(suffix):
                continue
            if self._is_numbered and _NUMBERED.fullmatch(suffix):
                continue
            try:
                problem = problem_of(suffix, content)
            except Unjudged:
                self.leave_out(suffix)
                continue
            if problem is not None:
                code, evidence = problem
                yield modalities.MemberFault(code, suffix, evidence)

    def leave_out(self, suffix: str) -> None:
        """Record that members with this suffix were not decoded."""
        if len(self.undecoded) < MOST_UNDECODED:
            self.undecoded.add(suffix.rpartition(".")[2][:LONGEST])


class Spans(NamedTuple):
    """One row per sample, in order: its start, its stop, and the CRC32C of the bytes between."""

    starts: list[int]
    stops: list[int]
    checksums: list[int]

    @classmethod
    def of(cls, index: NDArray[np.void] | None) -> Spans:
        """The rows of an index; none without an index, or where no tar could have such an index."""
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
        """The rows that a tar does not hold whole if it ends early, at `end`."""
        count = len(self.stops)
        return range(count if end is None else bisect_right(self.stops, end), count)

    def differing(self, file: BinaryIO, count: int) -> Iterator[int]:
        """The rows among the first `count` whose bytes have another CRC32C than in the index; OSError."""
        for row in range(count):
            left = self.stops[row] - self.starts[row]
            crc32c = 0
            while left and (data := file.read(min(left, CHUNK))):
                crc32c = google_crc32c.extend(crc32c, data)
                left -= len(data)
            if left or crc32c != self.checksums[row]:
                yield row


NO_SPANS = Spans([], [], [])
