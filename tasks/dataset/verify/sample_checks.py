"""The rules for the samples of a shard as a set: each key once, in one piece, with all its members.

Each fault also gets the key that the tables have for its sample.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from tasks.dataset.formats.checks import is_pickle
from tasks.dataset.modalities import Modality, missing
from tasks.dataset.verify.findings import Fix, plain
from tasks.dataset.verify.scan import UNSAFE, NumberedFault, ShardScan, Suffixes

MOST_NAMED = 8
"""How many members a message names."""


Located = tuple[int, str | None, NumberedFault]
"""Where a sample starts, or should start, with its key and its fault."""


class Repeats:
    """Keys that several samples of a shard have: `groups` holds the numbers of these samples for each key,
    `continued` the samples that only go on with an earlier one, whose members do not stand together."""

    def __init__(self, scan: ShardScan) -> None:
        self._scan = scan
        by_key: dict[str, list[int]] = defaultdict(list)
        if len(set(scan.keys)) < len(scan.keys):
            for number, key in enumerate(scan.keys):
                by_key[key].append(number)
        self.groups = [numbers for numbers in by_key.values() if len(numbers) > 1]
        self.numbers = {number for numbers in self.groups for number in numbers}
        self.continued: set[int] = set()
        self.notes: list[NumberedFault] = []
        for first, *later in self.groups:
            members = set(scan.suffixes[first])
            for number in later:
                places = f"at byte {scan.starts[first]:,} and again at byte {scan.starts[number]:,}"
                code, problem = "sample.duplicate_key", f"it stands {places}"
                if members.isdisjoint(scan.suffixes[number]):
                    self.continued.add(number)
                    code = "sample.split_members"
                    problem = f"its members do not stand together: they are {places}"
                self.notes.append(NumberedFault(number, code, None, {"problem": problem}))
                members.update(scan.suffixes[number])

    def united(self, numbers: list[int]) -> Suffixes:
        """The members of all these samples, which have one key."""
        return tuple(sorted({suffix for number in numbers for suffix in self._scan.suffixes[number]}))


def faults_of_sets(scan: ShardScan, modality: Modality | None, repeats: Repeats) -> Iterator[NumberedFault]:
    """Faults of samples in which a member comes twice, is missing or must not be there."""
    faults = {
        suffixes: (list(_faults_of_set(suffixes)), _lacking(suffixes, modality))
        for suffixes in set(scan.suffixes)
    }
    faulty = {suffixes: found for suffixes, found in faults.items() if any(found)}
    unjudged = scan.torn | scan.odd | repeats.numbers
    for number, suffixes in enumerate(scan.suffixes) if faulty else ():
        always, if_whole = faulty.get(suffixes, ((), ()))
        for note in always if number in unjudged else (*always, *if_whole):
            yield note._replace(number=number)
    for numbers in repeats.groups:
        if scan.torn.isdisjoint(numbers):
            for note in _lacking(repeats.united(numbers), modality):
                yield note._replace(number=numbers[0])


def _faults_of_set(suffixes: Suffixes) -> Iterator[NumberedFault]:
    counts = Counter(suffixes)
    repeated = [suffix for suffix, count in counts.items() if count > 1]
    if repeated:
        member = repeated[0] if len(repeated) == 1 else None
        problem = f"it holds {_named(repeated)} {counts[repeated[0]]} times"
        yield NumberedFault(0, "sample.duplicate_key", member, {"problem": problem})
    for suffix in counts:
        if is_pickle(suffix):
            problem = "a pickle by its name, which loaders execute"
            yield NumberedFault(0, "member.unsafe", suffix, {"problem": problem}, UNSAFE)


def _lacking(suffixes: Suffixes, modality: Modality | None) -> list[NumberedFault]:
    if modality is None:
        return []
    evidence = {"there": _named(sorted(set(suffixes)))}
    lacking = missing(modality.required, dict.fromkeys(suffixes))
    return [NumberedFault(0, "sample.missing_member", choices, evidence) for choices in lacking]


def _named(suffixes: list[str]) -> str:
    more = f" and {len(suffixes) - MOST_NAMED} more" if len(suffixes) > MOST_NAMED else ""
    return " ".join(suffixes[:MOST_NAMED]) + more


def sets_by_key(scan: ShardScan, repeats: Repeats) -> dict[str, Suffixes | None]:
    """Each key with its members, those of several pieces together; None where some may be lost."""
    unjudged = scan.torn | scan.odd
    numbered = enumerate(zip(scan.keys, scan.suffixes, strict=True))
    by_key = {key: None if number in unjudged else suffixes for number, (key, suffixes) in numbered}
    for numbers in repeats.groups:
        is_whole = unjudged.isdisjoint(numbers)
        by_key[scan.keys[numbers[0]]] = repeats.united(numbers) if is_whole else None
    return by_key


def located(scan: ShardScan, notes: list[NumberedFault]) -> list[tuple[str | None, NumberedFault]]:
    """All faults of samples with their keys, in the order of the tar: one for each sample, member and code,
    however often it was found."""
    task = scan.task
    has_other_keys = task.compares and task.keys is not None and list(task.keys) != scan.keys
    if not (notes or scan.differing or has_other_keys):
        return []
    rows = _IndexRows(scan)
    found = list(rows.of_differing())
    if has_other_keys:
        found += rows.of_other_keys()
    found += [(scan.starts[note.number], rows.key_of(note.number), note) for note in notes]
    first: dict[tuple[Any, ...], tuple[str | None, NumberedFault]] = {}
    for start, key, note in sorted(found, key=itemgetter(0)):
        first.setdefault((note.code, start if key is None else key, note.member), (key, note))
    return list(first.values())


class _IndexRows:
    """Finds the rows of the tables for the samples of the tar."""

    def __init__(self, scan: ShardScan) -> None:
        self._scan, self._starts = scan, scan.spans.starts
        self._keys = scan.task.keys or ()
        self._known = frozenset(self._keys)
        self._there = frozenset(scan.keys)
        self._by_start = {start: row for row, start in enumerate(self._starts)}

    def key_of(self, number: int) -> str:
        """The key of a sample: its own where the tables have it, else the one that belongs in its place,
        unless that one stands elsewhere in the tar."""
        key = self._scan.keys[number]
        if key in self._known:
            return key
        named = self._named(self._by_start.get(self._scan.starts[number]))
        return plain(key) if named is None or named in self._there else named

    def _named(self, row: int | None) -> str | None:
        return None if row is None or row >= len(self._keys) else self._keys[row]

    def of_differing(self) -> Iterator[Located]:
        """Rows whose bytes have another CRC32C; the index is wrong where the tar is as it was built."""
        is_as_built = self._scan.is_as_built
        code, fix = ("index.mismatch", Fix.TABLE) if is_as_built else ("member.checksum", Fix.SHARD)
        for row in self._scan.differing:
            evidence = {"row": row, "problem": "CRC32C differs from the index"}
            key = self._named(row) or self._found(row)
            yield self._starts[row], key, NumberedFault(row, code, None, evidence, fix)

    def _found(self, row: int) -> str | None:
        """The key of the first sample that the tar has in the row's place."""
        starts = self._scan.starts
        number = bisect_left(starts, self._starts[row])
        is_within = number < len(starts) and starts[number] < self._scan.spans.stops[row]
        return plain(self._scan.keys[number]) if is_within else None

    def of_other_keys(self) -> Iterator[Located]:
        """Rows in whose place the tar holds a sample of another key, although the bytes are the right
        ones."""
        differing = set(self._scan.differing)
        for key, start in zip(self._scan.keys, self._scan.starts, strict=True):
            row = self._by_start.get(start)
            named = self._named(row)
            if row is not None and named is not None and row not in differing and key != named:
                evidence = {"problem": f"the tar holds {plain(key)!r} in this place"}
                yield start, named, NumberedFault(row, "manifest.invalid", None, evidence, Fix.TABLE)
