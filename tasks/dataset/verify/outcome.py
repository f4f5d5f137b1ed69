"""What the looks into shards come to: findings, bad samples, and what only all shards together can tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from tasks.core.findings import Finding
from tasks.dataset.verify.duplicates import Duplicate, Duplicates, Lookup, key_hash
from tasks.dataset.verify.faults import REMAKE, RIGHTS, fault, where
from tasks.dataset.verify.index import index_name
from tasks.dataset.verify.ledger import Ledger
from tasks.dataset.verify.members_of import Kinds
from tasks.dataset.verify.records import BadSample, Inside, SampleFault, Task
from tasks.dataset.verify.reporting import Room, counted_out
from tasks.dataset.verify.samples_table import samples_name
from tasks.dataset.verify.tables import Shards

OnBad = Callable[[BadSample], None]
WHOLE = ("shard.missing", "shard.truncated", "shard.checksum")


class Outcome:
    """Takes one look after the other, in any order."""

    def __init__(self, on_bad: OnBad | None) -> None:
        self.ledger = Ledger()
        """What is known of the files beside the tars."""
        self.shards: Shards = {}
        self._on_bad = on_bad
        self._duplicates = Duplicates()
        self._kinds = Kinds()
        self._room = Room()
        self._told: set[tuple[str, str]] = set()
        """Bad samples of shards whose missing members are known later."""
        self.findings: list[Finding] = []
        self.copies: dict[str, str] = {}
        self.blake3: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        """Of shards that no table tells of: the checksum, and the number of samples."""
        self.read = 0
        self.undecoded: set[str] = set()
        self.samples = 0

    @property
    def tells(self) -> bool:
        """Whether anybody wants to be told of bad samples."""
        return self._on_bad is not None

    def take(self, task: Task, inside: Inside) -> None:
        """What a look has brought."""
        if inside.blake3 is None and not inside.findings:
            self.findings.append(fault("shard.missing", REMAKE, where(task.name)))
            self.absent(task)
            return
        self.undecoded |= inside.undecoded
        other = self._copied(task, inside)
        if other is not None:
            self.copies[task.name] = other
            problem = f"holds the content of {other}"
            self.findings.append(fault("shard.checksum", REMAKE, where(task.name), problem=problem))
            self._all_bad(task, "shard.checksum")
            return
        if inside.blake3 is not None:
            self.read += 1
            if task.expected is None:
                self.blake3[task.name] = inside.blake3
                self.counts[task.name] = len(inside.keys)
        self.samples += len(inside.keys)
        self.findings += inside.findings
        self.findings += self._sample_findings(task, inside.faults)
        bad = self._bad_rows(task, inside)
        self._duplicates.add(task.name, inside.keys, {key_hash(key) for key in bad})
        if inside.kinds:
            self._kinds.add(task.name, inside.kinds)

    def is_shut(self, shard: str) -> bool:
        """Whether it lies in a folder that this user may not read: nothing is known of its samples."""
        return shard.rpartition("/")[0] in self.ledger.shut

    def absent(self, task: Task) -> None:
        """A shard of which it has been told that it is not there."""
        if not self.is_shut(task.name):
            self._all_bad(task, "shard.missing")

    def cut(self, task: Task, size: int) -> None:
        """A shard of which that look has said that it is cut after `size` bytes."""
        if task.keys is None:
            return
        lost: Iterable[int] = range(len(task.keys))
        if task.index is not None:
            lost = np.flatnonzero(task.index["offset"] + task.index["length"] > max(size, 0)).tolist()
        for row in lost:
            self._tell(task.name, task.keys[row], "shard.truncated")

    def _copied(self, task: Task, inside: Inside) -> str | None:
        """The other shard whose content this one has: they were swapped or copied."""
        if task.expected is None or inside.blake3 is None or inside.blake3 == task.expected.blake3:
            return None
        for split in self.shards.values():
            number = split.number_of(inside.blake3)
            if number is not None:
                return split.shard(number).name
        return None

    def _sample_findings(self, task: Task, faults: Iterable[SampleFault]) -> Iterator[Finding]:
        """One for each sample, member and kind, however often that is said of it."""
        listed: dict[str, dict[tuple[str | None, str | None], Finding]] = defaultdict(dict)
        told: dict[str, set[tuple[object, ...]]] = defaultdict(set)
        for one in map(partial(self._blamed, task), faults):
            place = (one.key, one.member)
            told[one.code].add(place if one.key is not None else (*place, one.row))
            its = listed[one.code]
            if place not in its and self._room.takes(one.code, len(its)):
                its[place] = fault(one.code, one.remedy, _place(task, one), **one.evidence)
        for code, places in told.items():
            file = _file_of(task, code)
            if file is not None and self.ledger.is_faulty(file):
                self.ledger.count(file, "samples_that_differ", len(places))
            else:
                yield from counted_out(list(listed[code].values()), len(places))

    def _blamed(self, task: Task, one: SampleFault) -> SampleFault:
        """Of a shard whose checksum nobody knows, what differs from a sound index is the shard's fault."""
        is_of_tar = one.code == "index.mismatch" and task.expected is None
        if is_of_tar and not self.ledger.is_faulty(index_name(task.name.rpartition("/")[0])):
            return replace(one, code="member.checksum", remedy=REMAKE)
        return one

    def _bad_rows(self, task: Task, inside: Inside) -> set[str]:
        """Tell of every bad sample once; their keys."""
        bad: dict[str, str] = {}
        if inside.faults:
            known = None if task.keys is None else frozenset(task.keys)
            for one in map(partial(self._blamed, task), inside.faults):
                key = _key_of(task, one, known)
                if key is not None:
                    bad.setdefault(key, one.code)
        if self._on_bad is None:
            return set(bad)
        whole = (found for found in inside.findings if found.code in WHOLE and found.remedy != RIGHTS)
        reason = next((found.code for found in whole), None)
        if reason is not None and task.keys is not None:
            rows = range(len(task.keys)) if task.index is None else inside.lost
            for row in rows:
                bad.setdefault(task.keys[row], reason)
        for key, code in bad.items():
            self._tell(task.name, key, code)
        if inside.kinds:
            self._told |= {(task.name, key) for key in bad}
        return set(bad)

    def _all_bad(self, task: Task, reason: str) -> None:
        for key in task.keys or ():
            self._tell(task.name, key, reason)

    def _tell(self, shard: str, key: str, reason: str) -> None:
        if self._on_bad is not None:
            self._on_bad(BadSample(shard.rpartition("/")[0], shard, key, reason))

    def finish(self, lookup: Lookup, remedy: str) -> None:
        """What is known only now that all shards were seen."""
        for shard, keys, findings in self._kinds.faults(remedy, self._room):
            self.findings += findings
            for key in keys:
                if (shard, key) not in self._told:
                    self._tell(shard, key, "sample.missing_member")
        shown: dict[str, list[Finding]] = defaultdict(list)
        counts: dict[str, int] = defaultdict(int)
        for one in self._duplicates.found(lookup):
            counts[one.shard] += 1
            if self._room.takes("sample.duplicate_key", len(shown[one.shard])):
                shown[one.shard].append(_duplicate(one))
            if not one.is_known and one.key is not None:
                self._tell(one.shard, one.key, "sample.duplicate_key")
        for shard, findings in shown.items():
            self.findings += counted_out(findings, counts[shard])

    def close(self) -> None:
        self._duplicates.close()


def _duplicate(one: Duplicate) -> Finding:
    at = where(one.shard) if one.key is None else {**where(one.shard), "key": one.key}
    return fault("sample.duplicate_key", REMAKE, at, also_in=one.also_in)


def _key_of(task: Task, one: SampleFault, known: frozenset[str] | None) -> str | None:
    """The key that the tables have for a sample, without tables its own."""
    if task.keys is not None and one.row is not None:
        return task.keys[one.row] if one.row < len(task.keys) else None
    return one.key if known is None or one.key in known else None


def _file_of(task: Task, code: str) -> str | None:
    """The file beside the tars that a fault of a sample is one of."""
    split = task.name.rpartition("/")[0]
    return {"index.mismatch": index_name(split), "manifest.invalid": samples_name(split)}.get(code)


def _place(task: Task, one: SampleFault) -> dict[str, object]:
    place: dict[str, object] = where(task.name)
    file = _file_of(task, one.code)
    if file is not None:
        place["file"] = file
    if one.key is not None:
        place["key"] = one.key
    if one.member is not None:
        place["member"] = one.member
    return place
