"""The rules for the samples of a shard together: each key once, in one piece, with all its members."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasks.dataset.formats.checks import is_pickle
from tasks.dataset.modalities import Modality, missing
from tasks.dataset.verify.collected import UNSAFE, Collected, Noted
from tasks.dataset.verify.records import KEYS_SHOWN, Kind
from tasks.dataset.verify.rows import shown

MOST_KINDS = 1000
"""Member sets that are told apart; of more, only what a tenth of the samples has is told."""
MOST_TOLD = 8
"""Members that a message names."""


class Keys(NamedTuple):
    """`hashes` are those of each key once, in order. `repeated` are the numbers of samples by key, where one
    has several; `continued` the numbers of samples that only go on with an earlier one."""

    hashes: NDArray[np.uint64]
    repeated: list[list[int]]
    continued: frozenset[int]


def keys_of(samples: Collected) -> Keys:
    hashes = np.fromiter(map(xxhash.xxh3_64_intdigest, samples.keys), np.uint64, len(samples.keys))
    if len(set(samples.keys)) == len(hashes):
        return Keys(hashes, [], frozenset())
    once, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for number in np.flatnonzero(np.isin(hashes, once[counts > 1])).tolist():
        by_key[samples.keys[number]].append(number)
    repeated = [numbers for numbers in by_key.values() if len(numbers) > 1]
    continued = frozenset(
        number for numbers in repeated for number, shared in _overlaps(samples, numbers) if not shared
    )
    return Keys(hashes[np.sort(firsts)], repeated, continued)


def _overlaps(samples: Collected, numbers: list[int]) -> Iterator[tuple[int, set[str]]]:
    """Each later sample of a key, and the members that earlier ones have too."""
    seen = set(samples.suffixes[samples.sets[numbers[0]]])
    for number in numbers[1:]:
        its = set(samples.suffixes[samples.sets[number]])
        yield number, its & seen
        seen |= its


def faults_of_keys(samples: Collected, keys: Keys) -> Iterator[Noted]:
    for numbers in keys.repeated:
        first = samples.starts[numbers[0]]
        for number, shared in _overlaps(samples, numbers):
            places = f"at byte {first:,} and again at byte {samples.starts[number]:,}"
            if shared:
                yield Noted(number, "sample.duplicate_key", None, {"problem": f"it stands {places}"})
            else:
                problem = f"its members do not stand together: they are {places}"
                yield Noted(number, "sample.split_members", None, {"problem": problem})


def faults_of_sets(samples: Collected, modality: Modality | None, keys: Keys) -> Iterator[Noted]:
    """Members that are twice in a sample, or missing, or must not be there."""
    faults = {
        number: (list(_faults_of_set(suffixes)), _lacking(suffixes, modality))
        for number, suffixes in enumerate(samples.suffixes)
    }
    faulty = {number: found for number, found in faults.items() if any(found)}
    unjudged = samples.torn | samples.odd | {number for numbers in keys.repeated for number in numbers}
    for number, its_set in enumerate(samples.sets) if faulty else ():
        always, if_whole = faulty.get(its_set, ((), ()))
        for fault in always if number in unjudged else (*always, *if_whole):
            yield fault._replace(number=number)
    for numbers in keys.repeated:
        if samples.torn.isdisjoint(numbers):
            for fault in _lacking(_united(samples, numbers), modality):
                yield fault._replace(number=numbers[0])


def _united(samples: Collected, numbers: list[int]) -> tuple[str, ...]:
    return tuple(sorted({suffix for number in numbers for suffix in samples.suffixes[samples.sets[number]]}))


def _faults_of_set(suffixes: tuple[str, ...]) -> Iterator[Noted]:
    counts = Counter(suffixes)
    repeated = [suffix for suffix, count in counts.items() if count > 1]
    if repeated:
        member = repeated[0] if len(repeated) == 1 else None
        problem = f"it holds {told(repeated)} {counts[repeated[0]]} times"
        yield Noted(0, "sample.duplicate_key", member, {"problem": problem})
    for suffix in counts:
        if is_pickle(suffix):
            problem = "a pickle by its name, which loaders execute"
            yield Noted(0, "member.unsafe", suffix, {"problem": problem}, UNSAFE)


def _lacking(suffixes: tuple[str, ...], modality: Modality | None) -> list[Noted]:
    if modality is None:
        return []
    evidence = {"there": told(sorted(set(suffixes)))}
    lacking = missing(modality.required, dict.fromkeys(suffixes))
    return [Noted(0, "sample.missing_member", choices, evidence) for choices in lacking]


def told(suffixes: list[str]) -> str:
    more = f" and {len(suffixes) - MOST_TOLD} more" if len(suffixes) > MOST_TOLD else ""
    return " ".join(suffixes[:MOST_TOLD]) + more


def kinds_of(samples: Collected, keys: Keys) -> dict[tuple[str, ...], Kind]:
    """The whole samples by their members, those in several pieces put together."""
    unjudged = samples.torn | samples.odd
    repeated = {number for numbers in keys.repeated for number in numbers}
    names = [tuple(sorted(set(suffixes))) for suffixes in samples.suffixes]
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, its_set in enumerate(samples.sets):
        if number not in unjudged and number not in repeated:
            found[names[its_set]].append(number)
    for numbers in keys.repeated:
        if unjudged.isdisjoint(numbers):
            found[_united(samples, numbers)].append(numbers[0])
    if len(found) > MOST_KINDS:
        found = _reduced(found)
    return {
        suffixes: Kind(
            len(numbers), tuple(shown(samples.keys[number]) for number in sorted(numbers)[:KEYS_SHOWN])
        )
        for suffixes, numbers in found.items()
    }


def _reduced(found: dict[tuple[str, ...], list[int]]) -> dict[tuple[str, ...], list[int]]:
    """The same samples by those of their members that a tenth of all samples has."""
    counts: Counter[str] = Counter()
    for suffixes, numbers in found.items():
        counts.update(dict.fromkeys(suffixes, len(numbers)))
    least = sum(map(len, found.values())) / 10
    reduced: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for suffixes, numbers in found.items():
        reduced[tuple(suffix for suffix in suffixes if counts[suffix] >= least)] += numbers
    return reduced
