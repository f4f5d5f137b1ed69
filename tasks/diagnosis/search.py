"""Finds the loader settings that give the most samples, by a few short measurements.

Loading in the process itself shows the cost of a sample, and how much of it is work for a core. The search
starts with as many workers as keep the cores busy, and changes one setting at a time while that gains:
workers, reader, batches ahead. Where a setting leaves no core idle, more workers and batches ahead can gain
nothing and are not tried. Settings close to the best are measured once more, so that a lucky moment does not
decide. A sweep of all settings would also find what two settings gain only together, at many times the cost;
tests/benchmarks/bench_search.py compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tasks.loader.settings import Measurement, Reader, Setting

GAIN = 0.03
"""The gain that a costlier setting needs over a cheaper one; less is noise."""
AT_WORK = 0.95
"""A setting that keeps this share of the cores busy is at most a few percent below what they can give."""
CLOSE, FINALISTS = 0.10, 2
"""Settings within this share of the best, and at most so many, are measured once more."""


@dataclass(frozen=True)
class Space:
    """The settings to choose from: ascending numbers, and readers in the order of preference.

    There is at least one worker: without one nothing is read ahead, and the training waits for every batch.
    `cores` are those of a rank, and `fits` tests whether the machine has the memory, shared memory and file
    descriptors for a setting.
    """

    workers: Sequence[int]
    prefetch: Sequence[int]
    readers: Sequence[Reader]
    cores: int
    fits: Callable[[Setting], bool] = lambda setting: True

    def __iter__(self) -> Iterator[Setting]:
        """Yield all settings that fit."""
        every = (Setting(w, p, r) for r in self.readers for w in self.workers for p in self.prefetch)
        return filter(self.fits, every)


@dataclass(frozen=True)
class Alone:
    """The rate of loading in one process without workers. `busy` is the share of the time in which it wanted
    a core and did not wait for a disk."""

    samples_per_s: float
    busy: float


def worker_counts(cores: int) -> list[int]:
    """Return numbers up to twice the cores, which pays where a loader waits for its disk."""
    most = 2 * cores
    doubled = {2**power for power in range(most.bit_length())}
    return sorted({cores, most, *doubled, *(3 * count // 2 for count in doubled)} & {*range(1, most + 1)})


def predicted_workers(alone: Alone, cores: int, enough: float) -> int:
    """Predict the fewest workers that give `enough`, or else those that keep all cores busy."""
    at_work = round(cores / max(alone.busy, 0.5))
    wanted = 0.9 * enough / alone.samples_per_s  # the rate of one process is known no better
    return max(at_work if wanted > at_work else math.ceil(wanted), 1)


class Search:
    """One search. `measure` tries a setting; one that gives `enough` samples per second ends the search."""

    def __init__(
        self,
        space: Space,
        start: Setting,
        enough: float,
        measure: Callable[[Setting], Measurement],
        alone_per_s: float = math.inf,
    ) -> None:
        """`start` is moved to the nearest setting that fits; ValueError where none does. `alone_per_s` is the
        rate of one process, which no worker exceeds."""
        self._space, self._enough, self._measure = space, enough, measure
        self._alone_per_s = alone_per_s
        self._runs: dict[Setting, list[Measurement]] = {}
        order = space.readers.index

        def distance(one: Setting) -> tuple[int, int, int]:
            return order(one.reader), abs(one.workers - start.workers), abs(one.prefetch - start.prefetch)

        self._start = min(space, key=distance)

    def run(self) -> Setting:
        """Return the cheapest setting that gives enough, or the one that gives the most."""
        best = self._start
        self._rate(best)
        for step in (self._by_workers, self._by_reader, self._by_prefetch):
            if self._is_enough(best):
                return best
            best = step(best)
        if self._is_enough(best):
            return best
        ranked = sorted(self._runs, key=self._rate, reverse=True)
        least = (1 - CLOSE) * self._rate(ranked[0])
        close = [setting for setting in ranked if self._rate(setting) >= least][:FINALISTS]
        for one in close if len(close) > 1 else ():
            self._again(one)
        least = (1 - GAIN) * max(map(self._rate, self._runs))
        order = self._space.readers.index
        good = (one for one in self._runs if self._rate(one) >= least)
        return min(good, key=lambda one: (order(one.reader), one.workers, one.prefetch))

    @property
    def measurements(self) -> list[Measurement]:
        """One measurement per setting, in order; the mean for a setting that was measured again."""
        return [_mean(runs) for runs in self._runs.values()]

    def _by_workers(self, best: Setting) -> Setting:
        counts = [one for one in self._space.workers if self._space.fits(replace(best, workers=one))]
        place = counts.index(best.workers)
        more = [replace(best, workers=count) for count in counts[place + 1 :]]
        found = self._climb(best, [] if self._is_at_work(best) else more)
        if found != best or self._is_enough(found):
            return found
        for count in reversed(counts[:place]):
            fewer, least = replace(found, workers=count), (1 - GAIN) * self._rate(best)
            if count * self._alone_per_s * (1 + CLOSE) < least or self._rate(fewer) < least:
                break
            found = fewer
        return found

    def _by_reader(self, best: Setting) -> Setting:
        others = [replace(best, reader=reader) for reader in self._space.readers if reader != best.reader]
        found = self._climb(best, list(filter(self._space.fits, others)))
        return found if found == best or self._is_enough(found) else self._by_workers(found)

    def _by_prefetch(self, best: Setting) -> Setting:
        if self._is_at_work(best):
            return best
        depths = [depth for depth in self._space.prefetch if depth > best.prefetch]
        return self._climb(best, [replace(best, prefetch=depth) for depth in depths])

    def _climb(self, best: Setting, costlier: Sequence[Setting]) -> Setting:
        """Return the last of these settings, each costlier than the one before, that still gained."""
        for setting in costlier:
            if self._is_enough(best) or not self._space.fits(setting):
                break
            if self._rate(setting) < (1 + GAIN) * self._rate(best):
                break
            best = setting
        return best

    def _rate(self, setting: Setting) -> float:
        if setting not in self._runs:
            self._again(setting)
        return _mean(self._runs[setting]).samples_per_s

    def _again(self, setting: Setting) -> None:
        self._runs.setdefault(setting, []).append(self._measure(setting))

    def _is_enough(self, setting: Setting) -> bool:
        return self._rate(setting) >= self._enough

    def _is_at_work(self, setting: Setting) -> bool:
        """Return whether no core was idle."""
        return max(one.cores_busy or 0.0 for one in self._runs[setting]) >= AT_WORK * self._space.cores


def _mean(runs: Sequence[Measurement]) -> Measurement:
    rate = sum(one.samples_per_s for one in runs) / len(runs)
    return runs[0].model_copy(update={"samples_per_s": round(rate, 1)})
