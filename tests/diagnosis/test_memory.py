"""The memory model: its arithmetic, the limits of the machine, and a real loader's peak."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.diagnosis import memory
from tasks.diagnosis.memory import (
    LoaderCost,
    LoaderSize,
    MachineLimits,
    largest,
    measure,
    peak_bytes,
    tree_bytes,
)
from tasks.diagnosis.observation import machine
from tests.diagnosis.large import enlarged
from tests.loader.conftest import MakeVersion
from tests.loader.feeds import feed_of

COST = LoaderCost(sample=1e6, working=5e6, worker=100e6, main=500e6)
ROOM = MachineLimits(memory=100e9, by="the machine", shared=100e9, descriptors=100_000)


def test_every_worker_costs_its_batches_and_itself() -> None:
    size = LoaderSize(workers=4, prefetch=2, batch_size=64)
    assert peak_bytes(COST, size) == 500e6 + 4 * (100e6 + 5e6 + 3 * 64e6) + 64e6
    assert peak_bytes(COST, LoaderSize(4, 2, 64, ranks=2)) == 2 * peak_bytes(COST, size)


def test_a_validation_has_workers_beside_those_of_the_training() -> None:
    """Whose batches lie ready meanwhile."""
    size = LoaderSize(workers=4, prefetch=2, batch_size=64, judged=256)
    waiting = 4 * (100e6 + 2 * 64e6)
    assert peak_bytes(COST, size) == 500e6 + waiting + 4 * (100e6 + 5e6 + 3 * 256e6) + 256e6
    assert memory.shared_bytes(COST, size) == (8 * 64 + 9 * 256) * 1e6
    own = replace(COST, tensors=0)
    assert peak_bytes(own, size) == 500e6 + 4 * (100e6 + 3 * 64e6) + 4 * (100e6 + 5e6 + 4 * 256e6)
    assert peak_bytes(own, replace(size, judged=0)) == 500e6 + 4 * (100e6 + 5e6 + 4 * 64e6)
    assert memory.open_descriptors(own, size) == memory.open_descriptors(own, replace(size, judged=0)) + 8
    assert peak_bytes(replace(own, loose=0), replace(size, judged=0)) == 500e6 + 4 * (100e6 + 5e6 + 3 * 64e6)
    alone = LoaderSize(workers=0, prefetch=2, batch_size=64, judged=256)
    assert peak_bytes(COST, alone) == 500e6 + 5e6 + 2 * 256e6


def test_what_fits_is_left_as_it_is() -> None:
    size = LoaderSize(workers=8, prefetch=4, batch_size=256)
    assert largest(COST, size, ROOM) == size


@pytest.mark.parametrize(
    ("room", "fitting"),
    [
        (MachineLimits(9e9, "", 1e12, 10**6), LoaderSize(8, 2, 256)),
        (MachineLimits(3e9, "", 1e12, 10**6), LoaderSize(3, 1, 256)),
        (MachineLimits(1.0e9, "", 1e12, 10**6), LoaderSize(1, 1, 64)),
        (MachineLimits(1e12, "", 3e9, 10**6), LoaderSize(8, 1, 256)),
        (MachineLimits(1e12, "", 1e12, 160), LoaderSize(8, 1, 256)),
        (MachineLimits(0.5e9, "", 1e12, 10**6), None),
    ],
)
def test_the_largest_settings_that_fit_lose_prefetch_first_and_then_workers(
    room: MachineLimits, fitting: LoaderSize | None
) -> None:
    assert largest(COST, LoaderSize(8, 4, 256), room) == fitting


def test_the_limits_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = memory.limits()
    assert 0 < found.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found.descriptors >= 256
    monkeypatch.setattr(machine, "cgroup_limits", lambda pid: [(1_000_000, tmp_path / "memory.max")])
    assert memory.limits().memory == 1e6
    assert memory.limits().by.endswith("memory.max")


@pytest.mark.system
@pytest.mark.parametrize(
    ("workers", "prefetch", "batch"), [(2, 3, 64), pytest.param(3, 2, 96, marks=pytest.mark.proof)]
)
def test_the_peak_of_a_real_loader_is_within_15_percent(
    make_version: MakeVersion, workers: int, prefetch: int, batch: int
) -> None:
    feed = feed_of(make_version(train=[64, 64]), enlarged, batch_size=batch, prefetch=prefetch)
    cost = measure(feed)
    predicted = peak_bytes(cost, LoaderSize(workers, prefetch, batch))
    seen: list[float] = []
    with replace(feed, workers=workers).train() as batches:
        for _ in range(3):
            held = next(batches)
            seen.append(settled_peak())
        del held
    assert abs(predicted - max(seen)) <= 0.15 * max(seen), (predicted, max(seen), cost)


def settled_peak() -> float:
    """The most memory until it has not grown for a second and a half: the workers have run ahead."""
    most, grown = 0.0, time.monotonic()
    while time.monotonic() - grown < 1.5:
        now = tree_bytes(os.getpid())
        if now > most * 1.001:
            most, grown = now, time.monotonic()
        time.sleep(0.02)
    return most
