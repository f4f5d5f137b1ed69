import time
from collections import Counter

import numpy as np
import pytest

from tasks.core.errors import UsageError
from tasks.loader.order import (
    ORDERS,
    TRIES,
    Samples,
    Windows,
    invert,
    permute,
    rank_positions,
    sample_seeds,
    stand_ins,
)

COUNTS = [1, 2, 3, 4, 5, 7, 12, 64, 255, 256, 257, 1000, 4097]
ALL = [*ORDERS.values(), Windows(1), Windows(2), Windows(7), Windows(100)]


@pytest.mark.parametrize("count", COUNTS)
def test_permutation_is_a_bijection_and_inverts(count: int) -> None:
    values = np.arange(count)
    for seed in range(5):
        image = permute(values, count, seed)
        assert sorted(image) == list(range(count))
        assert np.array_equal(invert(image, count, seed), values)
        assert np.array_equal(permute(invert(values, count, seed), count, seed), values)


def test_every_permutation_of_three_is_about_as_likely() -> None:
    seen = Counter(tuple(permute(np.arange(3), 3, seed)) for seed in range(3000))
    assert len(seen) == 6
    assert min(seen.values()) > 400


def test_neighbours_end_up_at_every_distance() -> None:
    count = 97
    steps = np.concatenate([np.diff(permute(np.arange(count), count, seed)) % count for seed in range(500)])
    frequency = np.bincount(steps, minlength=count)[1:]
    expected = frequency.sum() / (count - 1)
    assert ((frequency - expected) ** 2 / expected).sum() < 160  # chi-square of 95 degrees: 0.0001 above 154


@pytest.mark.parametrize("order", ALL, ids=repr)
@pytest.mark.parametrize("count", COUNTS)
def test_each_epoch_holds_every_sample_once(order: Windows, count: int) -> None:
    numbers = order.indices(np.arange(3 * count), count, 5)
    for epoch in range(3):
        assert sorted(numbers[epoch * count : (epoch + 1) * count]) == list(range(count))


@pytest.mark.parametrize("order", ALL, ids=repr)
def test_a_position_does_not_depend_on_what_is_asked_with_it(order: Windows) -> None:
    together = order.indices(np.arange(50, 90), 23, 1)
    assert [order.indices(np.array([position]), 23, 1)[0] for position in range(50, 90)] == together.tolist()


@pytest.mark.parametrize("order", [Samples(), Windows(), Windows(100)], ids=repr)
def test_seed_and_epoch_change_the_order(order: Windows) -> None:
    count = 1000
    first = order.indices(np.arange(count), count, 0)
    other_seed = order.indices(np.arange(count), count, 1)
    next_epoch = order.indices(np.arange(count, 2 * count), count, 0)
    for other in (other_seed, next_epoch, np.arange(count)):
        assert np.mean(first == other) < 0.05


def test_windows_read_one_stretch_at_a_time() -> None:
    count, size = 1050, 100
    numbers = Windows(size).indices(np.arange(count), count, 3)
    start, stretches = 0, []
    while start < count:
        end = start + 1  # the longest run of reads that stays within `size` neighbours, round the end
        while end < count and np.ptp((numbers[start : end + 1] - numbers[start] + size) % count) < size:
            end += 1
        stretches.append(end - start)
        start = end
    assert sorted(stretches)[-10:] == [100] * 10
    assert sum(stretches[:-1]) <= count


def test_windows_are_cut_elsewhere_in_each_epoch() -> None:
    count, size = 1000, 100
    numbers = Windows(size).indices(np.arange(4 * count), count, 3).reshape(4, count // size, size)
    cuts = {tuple(sorted(window[0] for window in np.sort(epoch, axis=1))) for epoch in numbers}
    assert len(cuts) > 1


@pytest.mark.parametrize("name", ORDERS)
def test_a_billion_samples_cost_no_more(name: str) -> None:
    count = 10**9
    positions = np.arange(4096) + 7 * count - 100  # across the end of an epoch
    started = time.perf_counter()
    numbers = ORDERS[name].indices(positions, count, 1)  # type: ignore[index]
    assert time.perf_counter() - started < 1
    assert numbers.min() >= 0
    assert numbers.max() < count
    assert len(set(numbers[100:].tolist())) == 3996


def test_augmentation_seeds_differ_by_position_epoch_and_seed() -> None:
    seeds = np.concatenate([sample_seeds(np.arange(10_000), seed) for seed in range(3)])
    assert len(np.unique(seeds)) == 30_000
    assert seeds.min() >= 0


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_ranks_share_every_batch_evenly(world_size: int) -> None:
    for step in (0, 1, 77):
        slices = [rank_positions(step, 12, rank, world_size) for rank in range(world_size)]
        assert {len(part) for part in slices} == {12 // world_size}
        assert [p for part in slices for p in part] == list(range(step * 12, (step + 1) * 12))


def test_an_uneven_batch_is_refused_with_one_that_fits() -> None:
    with pytest.raises(UsageError, match=r"train\.batch_size: 10 .* 4 ranks; take 8"):
        rank_positions(0, 10, 0, 4)


def test_stand_ins_are_drawn_from_all_samples_by_seed_and_position() -> None:
    drawn = np.array([stand_ins(position, 50, seed=1) for position in range(2000)])
    assert drawn.shape == (2000, TRIES)
    counts = np.bincount(drawn.ravel(), minlength=50)
    assert len(counts) == 50 and counts.min() > 0.8 * counts.mean()
    assert len(np.unique(drawn, axis=0)) == 2000, "each position has its own"
    assert stand_ins(7, 50, seed=1) == drawn[7].tolist() != stand_ins(7, 50, seed=2)
    assert max(stand_ins(10**15, 3, seed=0)) < 3
