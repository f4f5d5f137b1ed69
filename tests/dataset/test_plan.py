import random

import numpy as np
import pytest

from tasks.dataset import plan
from tasks.dataset.keys import position

MAXIMUM = 32


def shards_of(keys: set[str], maximum: int = MAXIMUM) -> set[tuple[str, ...]]:
    """What the shards hold, as the trie plans them."""
    ordered = sorted(keys, key=lambda key: (position(key), key))
    positions = np.array([position(key) for key in ordered], np.uint64)
    ranges = plan.by_hash(positions, np.ones(len(ordered), np.int64), maximum)
    return {tuple(ordered[start:stop]) for start, stop in ranges}


@pytest.fixture
def keys() -> set[str]:
    return {f"sample {number}" for number in range(1000)}


def test_every_sample_is_in_one_shard_and_no_shard_is_too_full(keys: set[str]) -> None:
    shards = shards_of(keys)
    assert sorted(key for shard in shards for key in shard) == sorted(keys)
    assert all(0 < len(shard) <= MAXIMUM for shard in shards)


def test_n_changed_samples_touch_at_most_n_shards(keys: set[str]) -> None:
    shards = shards_of(keys)
    changed = set(random.Random(0).sample(sorted(keys), 5))
    assert sum(bool(changed & set(shard)) for shard in shards) <= 5


@pytest.mark.parametrize("count", [1, 3, 10])
def test_adding_and_removing_rewrite_at_most_twice_as_many(keys: set[str], count: int) -> None:
    before = shards_of(keys)
    for seed in range(20):
        rng = random.Random(seed)
        added = shards_of(keys | {f"new {seed} {number}" for number in range(count)})
        assert len(added - before) <= 2 * count
        removed = shards_of(keys - set(rng.sample(sorted(keys), count)))
        assert len(removed - before) <= 2 * count


def test_history_leaves_no_trace(keys: set[str]) -> None:
    grown = keys | {f"new {number}" for number in range(500)}
    assert shards_of(grown - {f"new {number}" for number in range(500)}) == shards_of(keys)


def test_weights_are_a_maximum_too() -> None:
    weights = np.array([5, 5, 90, 5, 5, 5, 40, 40], np.int64)
    positions = np.linspace(0, 2**64 - 2**60, len(weights)).astype(np.uint64)
    ranges = plan.by_hash(positions, weights, 50)
    assert [stop for _, stop in ranges] == [*[start for start, _ in ranges[1:]], len(weights)]
    assert all(weights[start:stop].sum() <= 50 or stop - start == 1 for start, stop in ranges)


def test_samples_with_all_bits_equal_share_a_shard() -> None:
    positions = np.full(5, 7, np.uint64)
    assert plan.by_hash(positions, np.ones(5, np.int64), 2) == [(0, 5)]


def test_in_order_fills_one_shard_after_another() -> None:
    assert plan.in_order(np.array([4, 4, 4, 20, 1, 1], np.int64), 8) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert plan.in_order(np.array([], np.int64), 8) == []
    assert plan.by_hash(np.array([], np.uint64), np.array([], np.int64), 8) == []
