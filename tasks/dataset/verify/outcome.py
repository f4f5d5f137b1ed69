"""What the examined shards come to: faults, bad samples, and what only all shards together show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tasks.dataset.verify.duplicates import SampleKeys
from tasks.dataset.verify.report import Fault, Fix, Room, counted_out, fault, shard_place

if TYPE_CHECKING:
    from tasks.dataset.verify.sample_checks import SampleFault
    from tasks.dataset.verify.shard import ShardResult, ShardTask

WHOLE = ("shard.missing", "shard.truncated", "shard.checksum")


@dataclass(frozen=True)
class BadSample:
    """A sample that may not be trusted, and the code of the first thing that is wrong with it."""

    split: str
    shard: str
    key: str
    reason: str


OnBad = Callable[[BadSample], None]


class Outcome:
    """Takes one result after the other, in any order."""

    def __init__(self, on_bad: OnBad | None = None) -> None:
        self.faults: list[Fault] = []
        self.blake3: dict[str, str] = {}
        """Of each tar that was read."""
        self.counts: dict[str, int] = {}
        """The samples of each tar that was examined to its end."""
        self.undecoded: set[str] = set()
        self.keys = SampleKeys()
        self._on_bad = on_bad
        self._room = Room()

    @property
    def wants_bad_samples(self) -> bool:
        return self._on_bad is not None

    def take(self, task: ShardTask, result: ShardResult) -> None:
        """What the examination of a shard has brought."""
        if result.is_absent:
            self.faults.append(fault("shard.missing", shard_place(task.name)))
            self.all_bad(task, "shard.missing")
            return
        self.undecoded |= result.undecoded
        if result.blake3 is not None:
            self.blake3[task.name] = result.blake3
        if result.is_read:
            self.counts[task.name] = len(result.keys)
        self.faults += result.faults
        self.faults += self._faults_of_samples(task, result.sample_faults)
        bad = self._bad_samples(task, result)
        for key, code in bad.items():
            self.bad(task.name, key, code)
        has_modality = task.modality is not None
        keys = dict.fromkeys(result.keys, -1) if has_modality else result.keys
        self.keys.add(task.name, keys, result.sets, bad)

    def all_bad(self, task: ShardTask, reason: str) -> None:
        """A shard none of whose samples may be trusted."""
        for key in task.keys or ():
            self.bad(task.name, key, reason)

    def bad(self, shard: str, key: str, reason: str) -> None:
        if self._on_bad is not None:
            self._on_bad(BadSample(shard.rpartition("/")[0], shard, key, reason))

    def _faults_of_samples(self, task: ShardTask, found: Iterable[SampleFault]) -> Iterator[Fault]:
        """One for each sample, member and kind, however often that is said of it."""
        listed: dict[str, dict[tuple[Any, ...], Fault]] = defaultdict(dict)
        places: dict[str, set[tuple[Any, ...]]] = defaultdict(set)
        for one in found:
            place = (one.key, one.member, None if one.key is not None else one.row)
            if place in places[one.code]:
                continue
            places[one.code].add(place)
            if self._room.takes(one.code, len(listed[one.code])):
                where = {**shard_place(task.name), "file": one.file, "key": one.key, "member": one.member}
                known = {name: value for name, value in where.items() if value is not None}
                listed[one.code][place] = fault(one.code, known, one.fix, **one.evidence)
        for code, faults in listed.items():
            yield from counted_out(list(faults.values()), len(places[code]))

    def _bad_samples(self, task: ShardTask, result: ShardResult) -> dict[str, str]:
        """The keys of bad samples, each with the code of the first thing that is wrong with it."""
        bad: dict[str, str] = {}
        keys = task.keys
        known = None if keys is None or not result.sample_faults else frozenset(keys)
        for one in result.sample_faults:
            key = one.key
            if keys is not None and one.row is not None:
                key = keys[one.row] if one.row < len(keys) else None
            elif known is not None and key not in known:
                key = None
            if key is not None:
                bad.setdefault(key, one.code)
        whole = (one for one in result.faults if one.code in WHOLE and one.fix is not Fix.RIGHTS)
        reason = next((one.code for one in whole), None)
        if reason is not None and keys is not None:
            for row in range(len(keys)) if task.index is None else result.lost:
                bad.setdefault(keys[row], reason)
        return bad

    def finish(self) -> None:
        """Add what is known only now that all shards were seen."""
        for shard, group in groupby(self.keys.lacking(), key=lambda one: one.shard):
            listed: list[Fault] = []
            count = 0
            last = None
            for one in group:
                count += 1
                if self._room.takes("sample.missing_member", len(listed)):
                    where = {**shard_place(shard), "key": one.key, "member": one.member}
                    evidence = {"there": one.there, "problem": one.share}
                    listed.append(fault("sample.missing_member", where, **evidence))
                if not one.is_known and one.key != last:
                    self.bad(shard, one.key, "sample.missing_member")
                last = one.key
            self.faults += counted_out(listed, count)
        shown: dict[str, list[Fault]] = defaultdict(list)
        counts: dict[str, int] = defaultdict(int)
        for again in self.keys.duplicates():
            counts[again.shard] += 1
            if self._room.takes("sample.duplicate_key", len(shown[again.shard])):
                where = {**shard_place(again.shard), "key": again.key}
                shown[again.shard].append(fault("sample.duplicate_key", where, also_in=again.also_in))
            if not again.is_known:
                self.bad(again.shard, again.key, "sample.duplicate_key")
        for shard, faults in shown.items():
            self.faults += counted_out(faults, counts[shard])

    def close(self) -> None:
        self.keys.close()
