"""A tar's members grouped to samples, by webdataset's rule: adjacent members of one key.

With an index, two samples of one key that follow each other are told apart by where its rows start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import compress, islice, pairwise
from operator import ne
from typing import NamedTuple

from tasks.dataset.tar.reader import BESIDE
from tasks.dataset.verify.entries import Cut, Gap
from tasks.dataset.verify.members import Member, Members
from tasks.dataset.verify.structure import Run

MOST_HELD = 4 << 30
"""Bytes of a sample's contents."""


@dataclass(slots=True)
class Stored:
    """A sample as found, from its first header on. `is_torn` when members of it may be lost; `odd` are the
    suffixes and kinds of members that no loader should follow, `empty` the suffixes of those of 0 bytes.
    `contents` has none where they are `held` bytes, more than MOST_HELD."""

    key: str
    start: int
    suffixes: list[str]
    is_torn: bool = False
    empty: list[str] = field(default_factory=list)
    odd: list[tuple[str, str]] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict)
    held: int = 0


class Plain(NamedTuple):
    """Many samples with nothing unusual about their names: keys, the suffixes of each, which sets of these
    there are, where each sample starts, and which have empty members with which suffixes."""

    keys: list[bytes]
    suffixes: list[tuple[bytes, ...]]
    sets: set[tuple[bytes, ...]]
    starts: list[int]
    empty: list[tuple[int, bytes]]


class Walk:
    """Iterates over the samples; then `cut` and `gaps` tell the damage. OSError."""

    def __init__(self, members: Members, starts: Collection[int], is_own: bool) -> None:
        self._members = members
        self._starts = frozenset(starts)
        self._is_own = is_own
        self._current: Stored | None = None
        self._is_torn = False
        self.cut: Cut | None = None
        self.first_gap: Gap | None = None
        self.gaps = 0

    def __iter__(self) -> Iterator[Stored | Plain]:
        try:
            yield from self._grouped()
        except Cut as cut:
            self.cut = cut
        if self._current is not None and self.cut is not None:
            self._current.is_torn |= not self.cut.is_between and self.cut.offset not in self._starts
        yield from self._closed()

    def _grouped(self) -> Iterator[Stored | Plain]:
        for found in self._members:
            if isinstance(found, Run):
                yield from self._of_run(found)
            elif isinstance(found, Gap):
                self._tear(found)
            else:
                yield from self._of_member(found)

    def _tear(self, gap: Gap) -> None:
        """Damage costs the samples around it members, but for those that the index tells to be whole."""
        if self._current is not None and gap.start not in self._starts:
            self._current.is_torn = True
        self._is_torn = gap.stop not in self._starts
        self.first_gap = self.first_gap or gap
        self.gaps += 1

    def _of_run(self, run: Run) -> Iterator[Stored | Plain]:
        """As `_of_member` for each of many. The first and the last sample may go on outside of the run."""
        keys, suffixes = run.keys, run.suffixes
        bounds = list(compress(range(1, len(keys)), map(ne, keys, islice(keys, 1, None))))
        first, last = (bounds[0], bounds[-1]) if bounds else (len(keys), len(keys))
        of_each = [tuple(suffixes[start:stop]) for start, stop in pairwise(bounds)]
        sets = set(of_each)
        if any(map(self._is_unusual, sets)):
            first = last = len(keys)
        for number in range(first):
            yield from self._of_member(_member(run, number))
        if last > first:
            yield from self._closed()
            starts = [run.starts[bound] for bound in bounds[:-1]]
            yield Plain([keys[bound] for bound in bounds[:-1]], of_each, sets, starts, _empty(run, bounds))
        for number in range(last, len(keys)):
            yield from self._of_member(_member(run, number))

    def _is_unusual(self, suffixes: tuple[bytes, ...]) -> bool:
        named = {suffix.decode().lower() for suffix in suffixes}
        return len(named) < len(suffixes) or not named.isdisjoint(BESIDE)

    def _of_member(self, member: Member) -> Iterator[Stored]:
        key, suffix, oddity, size, start, content = member
        current = self._current
        if current is None or key != current.key or (start in self._starts and suffix in current.suffixes):
            yield from self._closed()
            self._current = current = Stored(key, start, [], self._is_torn)
        self._is_torn = False
        current.suffixes.append(suffix)
        if oddity is not None:
            current.odd.append((suffix, oddity))
        elif not size:
            current.empty.append(suffix)
        elif content is not None:
            current.held += size
            if current.held <= MOST_HELD:
                current.contents[suffix] = content
            else:
                current.contents.clear()

    def _closed(self) -> Iterator[Stored]:
        """The sample in hand, unless it is only what tools put beside samples."""
        sample, self._current = self._current, None
        if sample is None:
            return
        if self._is_own or sample.suffixes[0] not in BESIDE or not BESIDE.issuperset(sample.suffixes):
            yield sample


def _member(run: Run, number: int) -> Member:
    key, suffix = run.keys[number].decode(), run.suffixes[number].decode().lower()
    return Member(key, suffix, None, run.sizes[number], run.starts[number], None)


def _empty(run: Run, bounds: list[int]) -> list[tuple[int, bytes]]:
    if all(run.sizes):
        return []
    return [
        (sample, run.suffixes[number])
        for sample, (start, stop) in enumerate(pairwise(bounds))
        for number in range(start, stop)
        if not run.sizes[number]
    ]
