import time
from collections import Counter, OrderedDict
from typing import get_args

import numpy as np
import pytest

from tasks.core.errors import UsageError
from tasks.loader.order import (
    MIXED,
    OPEN_SHARDS,
    TRIES,
    Order,
    Samples,
    Shuffle,
    Storage,
    Windows,
    invert,
    mix,
    order_of,
    permute,
    portions,
    rank_positions,
    sample_seeds,
    stand_ins,
)

COUNTS = [1, 2, 3, 4, 5, 7, 12, 64, 255, 256, 257, 1000, 4097]
ALL: list[Order] = [Samples(), Storage(), Windows(), Windows(1), Windows(2), Windows(7), Windows(100)]
EDGES: list[tuple[Order, int]] = [
    (Samples(), 257),  # an odd number of bits, and values to walk on from
    (Storage(), 5),
    (Windows(), 1),
    (Windows(), 4097),  # a last window of one sample
    (Windows(7), 64),  # a short last window, elsewhere in each epoch
    (Windows(100), 1000),  # no short window
]
"""Orders that each take another branch of the arithmetic, and the number of samples that makes them do so."""


@pytest.mark.parametrize("count", [1, 2, 3, 64, 257, 1000])
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


@pytest.mark.parametrize(("order", "count"), EDGES, ids=repr)
def test_each_epoch_holds_every_sample_once(order: Order, count: int) -> None:
    numbers = order.indices(np.arange(3 * count), count, 5)
    for epoch in range(3):
        assert sorted(numbers[epoch * count : (epoch + 1) * count]) == list(range(count))


@pytest.mark.proof
@pytest.mark.parametrize("order", ALL, ids=repr)
@pytest.mark.parametrize("count", COUNTS)
def test_each_epoch_of_every_order_and_size_holds_every_sample_once(order: Order, count: int) -> None:
    test_each_epoch_holds_every_sample_once(order, count)
    test_permutation_is_a_bijection_and_inverts(count)


@pytest.mark.parametrize("order", [Samples(), Windows(7)], ids=repr)
def test_a_position_does_not_depend_on_what_is_asked_with_it(order: Order) -> None:
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


@pytest.mark.parametrize("name", get_args(Shuffle))
def test_a_billion_samples_cost_no_more(name: str) -> None:
    count = 10**9
    positions = np.arange(4096) + 7 * count - 100  # across the end of an epoch
    started = time.perf_counter()
    numbers = order_of(name, count, 10**5, 30e3).indices(positions, count, 1)  # type: ignore[arg-type]
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


def test_weights_become_shares_of_neighbouring_positions() -> None:
    assert portions([1.0]) == [MIXED]
    assert portions([0.8, 0.2]) == portions([4, 1]) == [800, 200]
    assert portions([1, 1, 1]) == [334, 333, 333]
    with pytest.raises(UsageError, match=r"train\.data: a weight of 1 is less than a thousandth"):
        portions([1, 10_000])


def test_a_mix_holds_each_dataset_by_its_share_and_leaves_nothing_of_it_out() -> None:
    counts = [700, 250, 50]
    positions = np.arange(4 * MIXED)
    which, own = mix(positions, counts, seed=2)
    for block in range(4):
        assert np.bincount(which[block * MIXED : (block + 1) * MIXED]).tolist() == counts
    for number, count in enumerate(counts):
        assert own[which == number].tolist() == list(range(4 * count))
    parts = [mix(positions[start : start + 7], counts, 2) for start in range(990, 1011, 7)]
    assert np.concatenate([part[0] for part in parts]).tolist() == which[990:1011].tolist()
    assert np.concatenate([part[1] for part in parts]).tolist() == own[990:1011].tolist()
    assert not np.array_equal(which, mix(positions, counts, seed=3)[0])
    assert not np.array_equal(which[:MIXED], which[MIXED : 2 * MIXED])


@pytest.mark.parametrize(
    ("samples", "shards", "sample_bytes", "size"),
    [
        (20_000, 20, 30e3, 4096),
        (16_000, 1000, 30e3, 31 * 16),
        (16_000, 1000, 40e6, 53),
        (100, 100, 30e3, 31),
        (100, 1, 9e9, 1),
    ],
)
def test_windows_keep_to_bytes_and_open_shards(
    samples: int, shards: int, sample_bytes: float, size: int
) -> None:
    assert order_of("windows", samples, shards, sample_bytes) == Windows(size)


def test_shards_of_few_samples_are_opened_once_or_twice_an_epoch() -> None:
    samples, a_shard = 12_800, 16
    order = order_of("windows", samples, samples // a_shard, 1e6)
    opened, kept = 0, OrderedDict[int, None]()
    for shard in (order.indices(np.arange(samples), samples, 1) // a_shard).tolist():
        opened += shard not in kept
        kept[shard] = None
        kept.move_to_end(shard)
        if len(kept) > OPEN_SHARDS:
            kept.popitem(last=False)
    assert opened < 1.1 * samples / a_shard
