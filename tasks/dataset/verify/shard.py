"""One shard examined: read once by the tolerant reader, and what is wrong with it and its samples named.

Only shards that no seal proves come here, and all of them at the level full. Where a tar is not as it was
built, its samples are read a second time, to compare each with its CRC32C in the index.
"""

from __future__ import annotations

import contextlib
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple

import google_crc32c
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tasks.core.files import CHUNK
from tasks.core.stores import Unreachable
from tasks.dataset.formats.checks import is_pickle
from tasks.dataset.layout import index_name, samples_name
from tasks.dataset.modalities import MODALITIES, Modality, missing
from tasks.dataset.tar.reader import Cut, Gap, Member, StoredSample, TarReader, group_samples
from tasks.dataset.verify.decode import Decoder
from tasks.dataset.verify.report import Fault, Fix, fault, plain, shard_place
from tasks.dataset.verify.tars import open_file, open_tar

MOST_HELD = 4 << 30
"""Bytes of a sample's contents that are held to be decoded."""
MOST_NAMED = 8
"""Members that a message names."""
MOST_SETS = 1000
"""Sets of members that are told apart in a shard; of more, what a tenth of the samples has counts."""
UNSAFE = "remove it: a shard holds plain files only"
EMPTY = {"bytes": 0}
DIGITS = 12
"""Of a checksum, for a message."""

Suffixes = tuple[str, ...]


@dataclass(frozen=True)
class ShardTask:
    """A shard to examine: `name` relative to `folder`, which is local or remote.

    `blake3`, `samples`, `index` and `keys` are what the version's tables say of it, None where there is no
    such table. `compares` says that index and keys have no seal and are to be compared with the tar.
    `decodes` is the level full.
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


@dataclass(frozen=True, slots=True)
class SampleFault:
    """One thing that is wrong with one sample. `key` is None only where not even the tables know it; `row`
    counts the shard's samples, None for one that is in no table's place. `file` is at fault, or the tar."""

    code: str
    key: str | None
    member: str | None
    fix: Fix | str
    evidence: dict[str, Any] = field(default_factory=dict)
    row: int | None = None
    file: str | None = None


@dataclass(frozen=True)
class ShardResult:
    """What was found in a shard.

    `blake3` is that of one of our own tars. `is_absent` when there is no file, not `is_read` when it could
    not be read to its end. `faults` are
    of the shard as a whole, `sample_faults` of its samples, in their order. `keys` holds each key once with
    the number of its set of members in `sets`, or -1 where members may be lost. `undecoded` are the ends of
    suffixes that no decoder knows. `lost` are the rows that a cut tar does not hold whole.
    """

    name: str
    blake3: str | None = None
    is_absent: bool = False
    is_read: bool = True
    faults: list[Fault] = field(default_factory=list)
    sample_faults: list[SampleFault] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    sets: list[Suffixes] = field(default_factory=list)
    undecoded: frozenset[str] = frozenset()
    lost: range = range(0)


def check_shard(task: ShardTask) -> ShardResult:
    """Examine one shard from its first byte to its last; for what data may hold it never raises.

    Unreachable when a remote store does not answer: that is no shard's fault.
    """
    with warnings.catch_warnings() if task.decodes else contextlib.nullcontext():
        if task.decodes:
            warnings.simplefilter("ignore")  # what decoders have to say is a fault, or nothing
        return _check(task)


def _check(task: ShardTask) -> ShardResult:
    spans = Spans.of(task.index)
    scan = ShardScan(task, spans)
    if scan.is_absent:
        return ShardResult(task.name, is_absent=True)
    modality = MODALITIES.get(task.modality or "")
    repeats = Repeats(scan)
    end = scan.cut.offset if scan.cut else scan.size_bytes if scan.error else None
    lost = spans.lost(end)
    is_as_built = task.blake3 is not None and scan.blake3 == task.blake3
    differing: list[int] = []
    if spans.starts and (task.compares or not is_as_built):
        with contextlib.suppress(OSError), open_file(task.folder, task.name) as file:
            differing = list(spans.differing(file, lost.start))
    noted = [*scan.notes, *repeats.notes(), *_faults_of_sets(scan, modality, repeats)]
    names, of_key = _sets_by_key(scan, repeats)
    return ShardResult(
        task.name,
        scan.blake3,
        is_read=scan.error is None,
        faults=list(_whole(task, scan, spans, repeats, differing, is_as_built)),
        sample_faults=_located(task, scan, spans, noted, differing, is_as_built),
        keys=of_key,
        sets=names,
        undecoded=frozenset(scan.decoder.undecoded if scan.decoder else ()),
        lost=lost,
    )


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


class Repeats:
    """Keys that several samples of a shard have: `groups` are their numbers, key by key; `continued` those
    that only go on with an earlier one, whose members do not stand together."""

    def __init__(self, scan: ShardScan) -> None:
        self._scan = scan
        self.groups: list[list[int]] = []
        if len(set(scan.keys)) < len(scan.keys):
            by_key: dict[str, list[int]] = defaultdict(list)
            for number, key in enumerate(scan.keys):
                by_key[key].append(number)
            self.groups = [numbers for numbers in by_key.values() if len(numbers) > 1]
        self.numbers = {number for numbers in self.groups for number in numbers}
        self.continued = frozenset(
            number for numbers in self.groups for number, shared in self._overlaps(numbers) if not shared
        )

    def _overlaps(self, numbers: list[int]) -> Iterator[tuple[int, set[str]]]:
        """Each later sample of a key, and the members that earlier ones have too."""
        seen = set(self._suffixes(numbers[0]))
        for number in numbers[1:]:
            its = set(self._suffixes(number))
            yield number, its & seen
            seen |= its

    def _suffixes(self, number: int) -> Suffixes:
        return self._scan.suffixes[self._scan.sets[number]]

    def united(self, numbers: list[int]) -> Suffixes:
        """The members of all samples of a key."""
        return tuple(sorted({suffix for number in numbers for suffix in self._suffixes(number)}))

    def notes(self) -> Iterator[Note]:
        starts = self._scan.starts
        for numbers in self.groups:
            for number, shared in self._overlaps(numbers):
                places = f"at byte {starts[numbers[0]]:,} and again at byte {starts[number]:,}"
                if shared:
                    yield Note(number, "sample.duplicate_key", None, {"problem": f"it stands {places}"})
                else:
                    problem = f"its members do not stand together: they are {places}"
                    yield Note(number, "sample.split_members", None, {"problem": problem})


def _faults_of_sets(scan: ShardScan, modality: Modality | None, repeats: Repeats) -> Iterator[Note]:
    """Members that are twice in a sample, or missing, or must not be there."""
    faults = {
        number: (list(_faults_of_set(suffixes)), _lacking(suffixes, modality))
        for number, suffixes in enumerate(scan.suffixes)
    }
    faulty = {number: found for number, found in faults.items() if any(found)}
    unjudged = scan.torn | scan.odd | repeats.numbers
    for number, its_set in enumerate(scan.sets) if faulty else ():
        always, if_whole = faulty.get(its_set, ((), ()))
        for note in always if number in unjudged else (*always, *if_whole):
            yield note._replace(number=number)
    for numbers in repeats.groups:
        if scan.torn.isdisjoint(numbers):
            for note in _lacking(repeats.united(numbers), modality):
                yield note._replace(number=numbers[0])


def _faults_of_set(suffixes: Suffixes) -> Iterator[Note]:
    counts = Counter(suffixes)
    repeated = [suffix for suffix, count in counts.items() if count > 1]
    if repeated:
        member = repeated[0] if len(repeated) == 1 else None
        problem = f"it holds {_named(repeated)} {counts[repeated[0]]} times"
        yield Note(0, "sample.duplicate_key", member, {"problem": problem})
    for suffix in counts:
        if is_pickle(suffix):
            problem = "a pickle by its name, which loaders execute"
            yield Note(0, "member.unsafe", suffix, {"problem": problem}, UNSAFE)


def _lacking(suffixes: Suffixes, modality: Modality | None) -> list[Note]:
    if modality is None:
        return []
    evidence = {"there": _named(sorted(set(suffixes)))}
    lacking = missing(modality.required, dict.fromkeys(suffixes))
    return [Note(0, "sample.missing_member", choices, evidence) for choices in lacking]


def _named(suffixes: list[str]) -> str:
    more = f" and {len(suffixes) - MOST_NAMED} more" if len(suffixes) > MOST_NAMED else ""
    return " ".join(suffixes[:MOST_NAMED]) + more


def _sets_by_key(scan: ShardScan, repeats: Repeats) -> tuple[list[Suffixes], dict[str, int]]:
    """The sets of members of whole samples, those in several pieces put together, and each key's set."""
    sets: dict[Suffixes, int] = {}
    counts = Counter(scan.sets)
    common: frozenset[str] | None = None
    if len(counts) > MOST_SETS:
        members: Counter[str] = Counter()
        for its_set, count in counts.items():
            members.update(dict.fromkeys(scan.suffixes[its_set], count))
        common = frozenset(name for name, count in members.items() if count >= len(scan.sets) / 10)
    numbers: dict[Suffixes, int] = {}

    def number_of(suffixes: Suffixes) -> int:
        if suffixes not in numbers:
            kept = {one for one in suffixes if common is None or one in common}
            numbers[suffixes] = sets.setdefault(tuple(sorted(kept)), len(sets))
        return numbers[suffixes]

    unjudged = scan.torn | scan.odd
    by_key = {
        key: -1 if number in unjudged else number_of(scan.suffixes[its_set])
        for number, (key, its_set) in enumerate(zip(scan.keys, scan.sets, strict=True))
    }
    for group in repeats.groups:
        is_whole = unjudged.isdisjoint(group)
        by_key[scan.keys[group[0]]] = number_of(repeats.united(group)) if is_whole else -1
    return list(sets), by_key


def _whole(
    task: ShardTask, scan: ShardScan, spans: Spans, repeats: Repeats, differing: list[int], is_as_built: bool
) -> Iterator[Fault]:
    """What is wrong with the shard as a whole."""
    at = shard_place(task.name)
    if scan.error is not None:
        yield fault("shard.checksum", at, Fix.RIGHTS if scan.is_forbidden else Fix.SHARD, problem=scan.error)
        return
    count = len(scan.keys) - len(repeats.continued)
    if scan.cut is not None:
        whole = count - len(scan.torn)
        lost = {"lost_samples": max(task.samples - whole, 0)} if task.samples is not None else {}
        yield fault("shard.truncated", at, problem=str(scan.cut), whole_samples=whole, **lost)
    evidence = _damage(scan, differing)
    if not is_as_built and task.blake3 and scan.blake3 and (evidence or scan.cut is None):
        evidence |= {"blake3": scan.blake3[:DIGITS], "expected": task.blake3[:DIGITS]}
    if evidence:
        yield fault("shard.checksum", at, **evidence)
    if task.samples is None or scan.cut or scan.gaps:
        return
    if count != task.samples:
        yield fault("shard.count", at, samples=count, expected=task.samples)
    elif is_as_built and not differing and spans.starts:
        starts = [start for number, start in enumerate(scan.starts) if number not in repeats.continued]
        if starts != spans.starts:
            others = sorted(set(spans.starts).difference(starts))
            problem = f"no sample starts at byte {others[0]:,}; {len(others)} of its rows are elsewhere"
            yield fault("index.mismatch", {**at, "file": index_name(task.split)}, Fix.TABLE, problem=problem)


def _damage(scan: ShardScan, differing: list[int]) -> dict[str, Any]:
    """What is wrong besides an early end."""
    if scan.gap is not None:
        return {"problem": str(scan.gap), **({"gaps": scan.gaps} if scan.gaps > 1 else {})}
    if scan.cut is not None and differing:
        return {"problem": f"{len(differing)} samples before its end differ from what was built"}
    return {}


def _located(
    task: ShardTask, scan: ShardScan, spans: Spans, notes: list[Note], differing: list[int], is_as_built: bool
) -> list[SampleFault]:
    """All faults of samples, sample by sample, each with the row and the key that the tables have for it."""
    has_other_keys = task.compares and task.keys is not None and list(task.keys) != scan.keys
    if not (notes or differing or has_other_keys):
        return []
    rows = _Rows(task, scan, spans)
    found = list(rows.of_differing(differing, is_as_built))
    if has_other_keys:
        found += rows.of_other_keys(set(differing))
    places = [one.row or 0 for one in found]
    for note in notes:
        row, key = rows.of(note.number)
        found.append(SampleFault(note.code, key, note.member, note.fix, note.evidence, row))
        places.append(note.number if row is None else row)
    return [found[number] for number in sorted(range(len(found)), key=places.__getitem__)]


class _Rows:
    """Which row of the tables a sample of the tar is: the row of its place where the key agrees, else that of
    its key, else that of its place unless that row's own sample is elsewhere in the tar. Without tables it is
    the row of its number."""

    def __init__(self, task: ShardTask, scan: ShardScan, spans: Spans) -> None:
        self._task, self._scan, self._spans = task, scan, spans
        self._keys = task.keys or ()
        self._has_tables = bool(spans.starts) or task.keys is not None
        self._by_start = {start: row for row, start in enumerate(spans.starts)}
        self._by_key = {key: row for row, key in enumerate(self._keys)}
        self._there = frozenset(scan.keys if self._has_tables else ())

    def of(self, number: int) -> tuple[int | None, str]:
        """Row and key of a sample, the key by the tables, else by the tar."""
        key = self._scan.keys[number]
        row = self._row(key, self._scan.starts[number]) if self._has_tables else number
        return row, self._named(row) or plain(key)

    def _row(self, key: str, start: int) -> int | None:
        row = self._by_start.get(start)
        named = self._named(row)
        if row is not None and named in (None, key):
            return row
        return self._by_key.get(key, None if named in self._there else row)

    def _named(self, row: int | None) -> str | None:
        return None if row is None or row >= len(self._keys) else self._keys[row]

    def of_differing(self, rows: list[int], is_as_built: bool) -> Iterator[SampleFault]:
        """Where the tar is as it was built, the index is wrong."""
        for row in rows:
            key = self._named(row) or self._found(row)
            evidence = {"row": row, "problem": "CRC32C differs from the index"}
            if is_as_built:
                file = index_name(self._task.split)
                yield SampleFault("index.mismatch", key, None, Fix.TABLE, evidence, row, file)
            else:
                yield SampleFault("member.checksum", key, None, Fix.SHARD, evidence, row)

    def _found(self, row: int) -> str | None:
        """The key of the first sample that the tar has in the row's place."""
        starts = self._scan.starts
        number = bisect_left(starts, self._spans.starts[row])
        is_within = number < len(starts) and starts[number] < self._spans.stops[row]
        return plain(self._scan.keys[number]) if is_within else None

    def of_other_keys(self, differing: set[int]) -> Iterator[SampleFault]:
        """Rows in whose place the tar holds a sample of another key, though the bytes are the right ones."""
        file = samples_name(self._task.split)
        for key, start in zip(self._scan.keys, self._scan.starts, strict=True):
            row = self._by_start.get(start)
            named = self._named(row)
            if row is not None and named is not None and row not in differing and key != named:
                problem = f"{file} differs: the tar holds {plain(key)!r} in this place"
                yield SampleFault("manifest.invalid", named, None, Fix.TABLE, {"problem": problem}, row, file)
