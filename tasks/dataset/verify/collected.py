"""What the walk over a shard leaves of its samples: columns, of which a million fit in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from sys import intern
from typing import Any, NamedTuple

from tasks.dataset.verify.decoding import Decoder
from tasks.dataset.verify.walk import Plain, Stored

EMPTY = {"bytes": 0}
UNSAFE = "remove it: a shard holds plain files only"


class Noted(NamedTuple):
    """A fault of the sample with this number; without a remedy of its own it has the shard's."""

    number: int
    code: str
    member: str | None
    evidence: dict[str, Any]
    remedy: str | None = None


@dataclass
class Collected:
    """Samples by number. `sets` are numbers of `suffixes`: most samples have the same members. `torn` may
    have lost members to damage; `odd` hold nothing but what is no plain file."""

    keys: list[bytes] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    sets: list[int] = field(default_factory=list)
    suffixes: list[tuple[str, ...]] = field(default_factory=list)
    torn: set[int] = field(default_factory=set)
    odd: set[int] = field(default_factory=set)
    noted: list[Noted] = field(default_factory=list)
    _numbers: dict[tuple[str, ...], int] = field(default_factory=dict)
    _of_plain: dict[tuple[bytes, ...], int] = field(default_factory=dict)

    def add_all(self, walk: Iterable[Stored | Plain], decoder: Decoder | None) -> None:
        for found in walk:
            if isinstance(found, Plain):
                self._add_plain(found)
            else:
                self._add(found, decoder)

    def _add_plain(self, plain: Plain) -> None:
        first = len(self.keys)
        for sample, suffix in plain.empty:
            self.noted.append(Noted(first + sample, "member.empty", intern(suffix.decode().lower()), EMPTY))
        self.keys += plain.keys
        self.starts += plain.starts
        known = self._of_plain
        for suffixes in plain.sets.difference(known):
            known[suffixes] = self._number(tuple(suffix.decode().lower() for suffix in suffixes))
        self.sets += map(known.__getitem__, plain.suffixes)

    def _add(self, sample: Stored, decoder: Decoder | None) -> None:
        number = len(self.keys)
        self.keys.append(sample.key.encode("utf-8", "surrogateescape"))
        self.starts.append(sample.start)
        self.sets.append(self._number(tuple(sample.suffixes)))
        if sample.is_torn:
            self.torn.add(number)
        if len(sample.odd) == len(sample.suffixes):
            self.odd.add(number)
        for suffix, oddity in sample.odd:
            self.noted.append(Noted(number, "member.unsafe", suffix, {"problem": oddity}, UNSAFE))
        for suffix in sample.empty:
            self.noted.append(Noted(number, "member.empty", suffix, EMPTY))
        if decoder is not None and not sample.is_torn:
            self._decode(number, sample, decoder)

    def _decode(self, number: int, sample: Stored, decoder: Decoder) -> None:
        passed = {*sample.contents, *sample.empty, *(suffix for suffix, _ in sample.odd)}
        for suffix in set(sample.suffixes).difference(passed):
            decoder.leave_out(suffix)  # too large to be held
        for fault in decoder.judge(sample.contents) if sample.contents else ():
            self.noted.append(Noted(number, fault.code, fault.member, {"problem": fault.evidence}))

    def _number(self, suffixes: tuple[str, ...]) -> int:
        number = self._numbers.setdefault(suffixes, len(self.suffixes))
        if number == len(self.suffixes):
            self.suffixes.append(suffixes)
        return number
