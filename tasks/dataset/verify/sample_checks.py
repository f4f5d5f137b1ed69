"""The rules for the samples of a shard together: each key once, in one piece, with all its members.

Here, too, each fault finds the row of the tables that it is about.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.dataset.formats.checks import is_pickle
from tasks.dataset.layout import index_name, samples_name
from tasks.dataset.modalities import Modality, missing
from tasks.dataset.verify.report import Fix, plain
from tasks.dataset.verify.scan import UNSAFE, Note, ShardScan, Spans, Suffixes

if TYPE_CHECKING:
    from tasks.dataset.verify.shard import ShardTask

MOST_NAMED = 8
"""Members that a message names."""
MOST_SETS = 1000
"""Sets of members that are told apart in a shard; of more, what a tenth of the samples has counts."""


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


def faults_of_sets(scan: ShardScan, modality: Modality | None, repeats: Repeats) -> Iterator[Note]:
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


def sets_by_key(scan: ShardScan, repeats: Repeats) -> tuple[list[Suffixes], dict[str, int]]:
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


def located(
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
