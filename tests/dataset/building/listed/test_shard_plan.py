import random
from collections.abc import Iterator

import pytest

from tasks.dataset.building.listed import shard_plan as plan
from tasks.dataset.keys import shard_hash

MAXIMUM = 32


def shards_of(keys: set[str], maximum: int = MAXIMUM) -> set[tuple[str, ...]]:
    """The keys in each shard that the trie plans."""
    ordered = sorted(keys, key=lambda key: (shard_hash(key), key))
    return {tuple(group) for group in plan.by_hash(((shard_hash(key), 1, key) for key in ordered), maximum)}


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


def reference(positions: list[int], weights: list[int], maximum: int) -> list[list[int]]:
    """The trie as its definition has it, with all samples at hand."""

    def leaves(members: list[int], bit: int) -> list[list[int]]:
        if not members:
            return []
        if len(members) == 1 or bit == 64 or sum(weights[n] for n in members) <= maximum:
            return [members]
        ones = [n for n in members if positions[n] >> (63 - bit) & 1]
        return leaves([n for n in members if n not in ones], bit + 1) + leaves(ones, bit + 1)

    return leaves(list(range(len(positions))), 0)


@pytest.mark.parametrize("seed", range(40))
def test_the_stream_is_cut_as_the_whole_would_be(seed: int) -> None:
    rng = random.Random(seed)
    bits = rng.choice([4, 12, 64])  # few bits: many samples share theirs
    positions = sorted(rng.getrandbits(bits) << (64 - bits) for _ in range(rng.randrange(200)))
    weights = [rng.choice([0, 1, 5, 40, 90]) for _ in positions]
    samples = [(place, weight, n) for n, (place, weight) in enumerate(zip(positions, weights, strict=True))]
    assert list(plan.by_hash(samples, 50)) == reference(positions, weights, 50)


def test_no_more_than_a_shard_is_read_ahead() -> None:
    read = 0

    def samples() -> Iterator[plan.Weighed[int]]:
        nonlocal read
        for number in range(10_000):
            read += 1
            yield (number << 50, 1, number)

    given = 0
    for group in plan.by_hash(samples(), MAXIMUM):
        given += len(group)
        assert read - given <= MAXIMUM + 1


def test_samples_with_all_bits_equal_share_a_shard() -> None:
    assert list(plan.by_hash([(7, 1, n) for n in range(5)], 2)) == [[0, 1, 2, 3, 4]]


def test_in_order_fills_one_shard_after_another() -> None:
    samples = [(0, weight, n) for n, weight in enumerate([4, 4, 4, 20, 1, 1])]
    assert list(plan.in_order(samples, 8)) == [[0, 1], [2], [3], [4, 5]]
    assert list(plan.in_order([], 8)) == []
    assert list(plan.by_hash([], 8)) == []
