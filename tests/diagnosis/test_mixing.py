"""How well samples are shuffled: the figures by hand and by expectation, and that they are of what is read."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core.units import percent
from tasks.diagnosis.measure import qualities_of
from tasks.diagnosis.mixing import (
    LEAST,
    MOST,
    Draw,
    ShuffleQuality,
    distinct_shards,
    first_shards,
    indexed_draw,
    met_again,
    neighbour_distance,
    perfect_distinct_shards,
    quality_of,
    rank_correlation,
    stream_batches,
    streamed_draw,
)
from tasks.loader.feed import Data
from tasks.loader.lanes import Lane
from tasks.loader.order import Order, Samples, Storage, Windows
from tests.loader import transforms
from tests.loader.conftest import MakeVersion
from tests.loader.feeds import feed_of

SIZES = [256] * 64


def quality(order: Order, sizes: Sequence[int] = SIZES, batch: int = 64, window: int = 1) -> ShuffleQuality:
    return quality_of(partial(indexed_draw, order, 0, batch, window=window), sizes, batch)


def test_a_permutation_of_all_samples_is_a_perfect_shuffle() -> None:
    found = quality(Samples())
    assert found.shard_mixing == pytest.approx(1, abs=0.01)
    assert found.neighbour_distance == pytest.approx(1, abs=0.02)
    assert found.storage_correlation == pytest.approx(0, abs=0.03)
    assert found.met_again == pytest.approx(found.perfect_met_again, rel=0.2)


def test_samples_as_they_are_stored_are_no_shuffle() -> None:
    found = quality(Storage())
    assert (found.shards_per_batch, found.storage_correlation) == (1, 1)
    assert found.met_again == pytest.approx(1) and found.neighbour_distance < 0.001


def test_windows_mix_the_shards_that_they_span() -> None:
    """Of 1,024 samples in four or five shards, which a batch of 64 hits all."""
    found = quality(Windows(1024))
    assert 4 < found.shards_per_batch < 5 and found.perfect_shards_per_batch == pytest.approx(40.7, abs=0.05)
    assert found.neighbour_distance < 0.2
    assert 0.02 < found.met_again < 64 / 1024, (
        "those of a window meet again where their next window is the same"
    )


def test_rows_mix_the_shards_of_their_window() -> None:
    plain, packed = (quality(Windows(256), window=window) for window in (1, 4096))
    assert plain.shards_per_batch < 3 and packed.shards_per_batch > 10


@pytest.mark.parametrize("sizes", [[5, 5, 5], [1, 2, 9], [12], [1] * 12])
@pytest.mark.parametrize("batch", [1, 4, 12])
def test_the_expected_shards_are_those_of_all_choices(sizes: list[int], batch: int) -> None:
    shard = np.repeat(np.arange(len(sizes)), sizes)
    counts = [len({*shard[list(chosen)]}) for chosen in itertools.combinations(range(sum(sizes)), batch)]
    assert perfect_distinct_shards(sizes, batch) == pytest.approx(np.mean(counts))


def test_the_expected_distance_is_that_of_all_pairs() -> None:
    pairs = np.array(list(itertools.permutations(range(20), 2)))
    assert neighbour_distance(pairs, 20) == pytest.approx(1)


def test_the_figures_of_small_orders() -> None:
    assert distinct_shards(np.array([[0, 1, 2], [0, 2, 5], [5, 0, 2]]), [2, 2, 2]) == pytest.approx(8 / 3)
    times = np.arange(4)
    assert rank_correlation(times, np.array([2, 30, 400, 5000])) == 1
    assert rank_correlation(times, times[::-1]) == -1
    first = np.array([0, 1, 2, 3, 4, 5])
    assert met_again(first, np.array([2, 1, 0, 3, 4, 5]), 3, 6) == 1
    assert met_again(first, np.array([0, 3, 1, 4, 2, 5]), 2, 6) == 0
    assert met_again(first, np.array([0, 1, 3, 2, 4, 5]), 3, 6) == pytest.approx(4 / 12)
    assert met_again(first, first, 1, 6) == 0, "nobody to meet"


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("sizes", [[1, 1, 1], [3], [2, 1]])
def test_the_smallest_datasets_have_figures(batch: int, sizes: list[int]) -> None:
    found = quality(Windows(), sizes, batch)
    assert found.shard_mixing > 0 and 0 <= found.met_again <= 1
    assert quality(Windows(), [1], 1).neighbour_distance == 1


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("reader", "shuffle"),
    [("indexed", "windows"), ("indexed", "samples"), ("streaming", "windows"), ("streaming", "none")],
)
def test_what_is_judged_is_what_is_read(
    make_version: MakeVersion, reader: str, shuffle: str, ranks: int
) -> None:
    """The keys of the batches of all ranks, from two places in the sequence on."""
    sizes = [40, 7, 90, 25, 61]
    version = make_version(train=sizes)
    given: dict[str, Any] = {"reader": reader, "shuffle": shuffle, "batch_size": 6, "seed": 5}
    feeds = [
        feed_of(version, transforms.plain, rank=rank, world_size=ranks, **given) for rank in range(ranks)
    ]
    draw = drawn_by(feeds[0], version, sizes)
    for start in (0, 95):
        read = [feed.train(feed.state(start)) for feed in feeds]
        keys = [key for _ in range(9) for batches in read for key in next(batches)["key"]]
        assert [int(key[1:]) for key in keys] == draw(range(start, start + 9)).tolist()


def drawn_by(feed: Any, version: Path, sizes: Sequence[int]) -> Draw:
    """What `qualities_of` looks at for the feed."""
    found: list[Draw] = []

    def kept(draw_of: Any, given: Sequence[int], *_: Any) -> ShuffleQuality:
        assert list(given) == sizes
        found.append(draw_of(given))
        return quality(Samples())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.diagnosis.measure.quality_of", kept)
        qualities_of(feed)
    [draw] = found
    return draw


def test_each_dataset_of_a_mix_has_its_share_of_a_batch(make_version: MakeVersion) -> None:
    data = Data(make_version(train=[40, 40]), weight=3)
    feed = feed_of(data.version, transforms.plain, batch_size=16)
    found = qualities_of(replace(feed, datasets=(data, replace(data, weight=1.0))))
    assert [one.batch for one in found] == [12, 4]


@pytest.mark.parametrize("seats", [1, 8])
def test_of_a_billion_samples_some_are_looked_at(seats: int) -> None:
    sizes, batch = [10**5] * 10**4, 1024
    asked: list[int] = []

    def counted(draw_of: Any, sizes: Sequence[int]) -> Draw:
        draw = draw_of(sizes)

        def counting(steps: range) -> Any:
            asked.append(len(steps) * batch)
            return draw(steps)

        return counting

    lane = Lane(0, 24 * seats, sizes, seed=0, largest=max(4096 // 24 // seats, 1))
    streamed = partial(streamed_draw, lane, 24, seats, batch)
    found = quality_of(partial(counted, streamed), sizes, batch, stream_batches(seats, len(sizes)))
    assert sum(asked) < 5 * MOST and LEAST <= len(asked) < 60, "each puts all shards in order for its lanes"
    assert seats <= found.shards_per_batch < 3 * seats and found.met_again > 0.05
    asked.clear()
    indexed = quality_of(partial(counted, partial(indexed_draw, Windows(), 0, batch)), sizes, batch)
    assert sum(asked) < 5 * MOST and indexed.shards_per_batch < 2


def test_what_meets_again_hardly_depends_on_the_shards_that_are_not_looked_at() -> None:
    """Of four times as many samples as are looked at; and a permutation has them meet by chance alone."""
    small, large = (quality(Windows(), [1024] * shards, 256) for shards in (MOST // 1024, MOST // 256))
    assert large.samples == 4 * small.samples == 4 * MOST
    assert large.met_again == pytest.approx(small.met_again, rel=0.1) and large.met_again > 0.02
    assert quality(Samples(), [1024] * (MOST // 256), 256).met_again == pytest.approx(255 / 4 / MOST, rel=0.3)
    assert first_shards([10**9, 5], 100) == [100] and first_shards([40, 40, 40], 100) == [40, 40]


def test_it_is_said_in_a_line() -> None:
    found = quality(Windows(1024))
    said = str(found)
    assert said.startswith(f"{found.shard_mixing:.2f} of a perfect shuffle's mixing of shards (4.")
    assert " in a batch of 64, of 40.7), neighbours 0." in said
    chance = percent(found.perfect_met_again)
    assert said.endswith(
        f"{percent(found.met_again)} of a batch met again in the next epoch ({chance} by chance)"
    )
