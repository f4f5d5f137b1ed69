"""The search for loader settings, on machines that are functions: what it finds, and how few it tries."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import inf

import pytest

from tasks.diagnosis.search import Alone, Search, Space, predicted_workers, worker_counts
from tasks.loader.settings import Measurement, Setting

Machine = Callable[[Setting], float]


def space_of(cores: int) -> Space:
    return Space(worker_counts(cores), (1, 2, 4, 8), ("indexed", "streaming"), cores)


def searched(
    space: Space,
    machine: Machine,
    start: Setting,
    enough: float = 1e9,
    alone: float = inf,
    cores_busy: Machine = lambda one: 0.0,
) -> tuple[Setting, int]:
    """What is found, and after how many measurements."""
    tried: list[Setting] = []

    def measure(setting: Setting) -> Measurement:
        tried.append(setting)
        assert space.fits(setting)
        return Measurement(
            workers=setting.workers,
            prefetch=setting.prefetch,
            reader=setting.reader,
            samples_per_s=machine(setting),
            first_batch_s=0.1,
            cores_busy=cores_busy(setting),
        )

    return Search(space, start, enough, measure, alone).run(), len(tried)


def decoding(cores: int, noise: float = 0.0, streaming: float = 0.8, deep: float = 1.0) -> Machine:
    """Every worker gives 100 samples per second up to the cores and loses a little above; a `streaming` reader
    gives that share, and a batch ahead hides the way that a batch takes; more gain `deep`."""
    draws = random.Random(0)

    def rate(one: Setting) -> float:
        busy = min(one.workers, cores) * 100 - 2 * max(one.workers - cores, 0)
        ahead = {1: 0.8, 2: 1.0}.get(one.prefetch, deep)
        share = streaming if one.reader == "streaming" else 1.0
        return busy * ahead * share * (1 + draws.uniform(-noise, noise))

    return rate


@pytest.mark.parametrize("noise", [0.0, 0.04])
@pytest.mark.parametrize("cores", [2, 6, 16, 64])
@pytest.mark.parametrize(("streaming", "deep"), [(0.8, 1.0), (1.3, 1.0), (0.9, 1.2), (1.0, 1.0)])
def test_the_best_is_found_by_few_measurements(
    cores: int, noise: float, streaming: float, deep: float
) -> None:
    space, machine = space_of(cores), decoding(cores, noise, streaming, deep)
    truth = decoding(cores, 0.0, streaming, deep)
    start = Setting(predicted_workers(Alone(100, 0.95), cores, 1e9), 2, "indexed")
    found, tried = searched(space, machine, start)
    assert truth(found) >= 0.95 * max(map(truth, space))
    assert tried <= 12 < len(list(space))
    if not noise:
        assert found.reader == ("streaming" if streaming > 1.0 else "indexed")
        assert found.workers == cores and found.prefetch == (4 if deep > 1.0 else 2)


def test_what_waits_for_its_disk_gets_more_workers_than_cores() -> None:
    start = Setting(predicted_workers(Alone(10, 0.1), 4, 1e9), 2, "indexed")
    found, _ = searched(space_of(4), lambda one: 10.0 * one.workers, start)
    assert found.workers == 8


def test_a_disk_that_two_workers_fill_gets_two() -> None:
    found, _ = searched(space_of(8), lambda one: min(one.workers, 2) * 50.0, Setting(8, 2, "indexed"))
    assert found == Setting(2, 2, "indexed")


def test_fewer_workers_than_one_process_gives_are_not_tried() -> None:
    """Six would have to give more than a process alone each, to give what eight do."""
    start = Setting(8, 2, "indexed")
    freely = searched(space_of(8), decoding(8), start)
    assert searched(space_of(8), decoding(8), start, alone=100) == (freely[0], freely[1] - 1)


def test_more_is_not_tried_where_no_core_is_idle() -> None:
    """A reader that takes less of a core is, and with it whatever leaves some idle."""
    start, space = Setting(4, 2, "indexed"), space_of(4)
    deep = decoding(4, streaming=1.3, deep=1.2)
    assert searched(space, deep, start, alone=100, cores_busy=lambda one: 3.9) == (
        Setting(4, 2, "streaming"),
        2,
    )
    found, _ = searched(
        space, deep, start, alone=100, cores_busy=lambda one: 3.9 if one.reader == "indexed" else 3.0
    )
    assert found == Setting(4, 4, "streaming")


def test_enough_ends_the_search_at_once() -> None:
    start = Setting(predicted_workers(Alone(100, 1.0), 16, 250), 2, "indexed")
    assert searched(space_of(16), decoding(16), start, enough=250) == (Setting(3, 2, "indexed"), 1)


def test_too_few_of_the_predicted_are_made_more_until_they_are_enough() -> None:
    found, tried = searched(space_of(16), lambda one: 60.0 * one.workers, Setting(3, 2, "indexed"), 250)
    assert (found.workers, tried) == (6, 3)


def test_only_what_fits_is_tried_and_chosen() -> None:
    """decoding() would take 16 workers, and `searched` fails on a measurement that does not fit."""
    plain = space_of(16)
    space = Space(
        plain.workers, plain.prefetch, plain.readers, 16, lambda one: one.workers * one.prefetch <= 6
    )
    found, _ = searched(space, decoding(16), Setting(16, 2, "indexed"))
    assert found.workers * found.prefetch <= 6
    with pytest.raises(ValueError):
        searched(Space([1], [1], ["indexed"], 1, lambda one: False), decoding(1), Setting(1, 1, "indexed"))


def test_worker_counts_grow_to_twice_the_cores() -> None:
    counts = {cores: worker_counts(cores) for cores in (1, 2, 3, 16)}
    assert counts == {
        1: [1, 2],
        2: [1, 2, 3, 4],
        3: [1, 2, 3, 4, 6],
        16: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32],
    }
