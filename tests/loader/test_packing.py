"""Packs: what they hold, how full they are, and that nothing but lengths, seed and number decides it."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from tasks.core.errors import DataError
from tasks.loader.order import Integers, Samples
from tasks.loader.packing.packs import Lengths, PackLimits, Packs, PackSteps, pack_window, window_size

NANOVLM = PackLimits(4096, 18)


def conversations(count: int, seed: int = 0) -> Lengths:
    """As long as nanoVLM takes them to be: 64 tokens and a mark for each image and 198 of text on average."""
    random = np.random.default_rng(seed)
    images = random.choice([0, 1, 2], count, p=[0.05, 0.9, 0.05]).astype(np.int32)
    text = random.lognormal(np.log(198) - 0.32, 0.8, count)
    return Lengths(np.clip(65 * images + text, 20, 4094).astype(np.int32), images)


def packs_of(lengths: Lengths, seed: int = 3, limits: PackLimits = NANOVLM) -> Packs:
    count = len(lengths.tokens)

    def draw(places: Integers) -> Lengths:
        numbers = Samples().indices(places, count, seed)
        return Lengths(lengths.tokens[numbers], lengths.images[numbers])

    return Packs(draw, limits, window_size([lengths], limits), seed)


def test_an_epoch_is_packed_once_within_limits_and_98_percent_full() -> None:
    lengths = conversations(60_000)
    packs = packs_of(lengths)
    windows = 3
    held: list[int] = []
    rows: list[int] = []
    count = 0
    for pack in packs.starting(0):
        if len(held) == windows * packs.window:
            break
        held += pack.tolist()
        rows += [count] * len(pack)
        count += 1
    drawn = packs.draw(np.array(held))
    assert np.bincount(rows, drawn.tokens).max() <= 4096 and np.bincount(rows, drawn.images).max() <= 18
    assert sorted(held) == list(range(windows * packs.window)), "each position once"
    assert drawn.tokens.sum() / (count * 4096) >= 0.98


def test_a_sequence_goes_on_at_any_pack() -> None:
    packs = packs_of(conversations(40_000))
    whole = list(islice(packs.starting(0), 2500))
    for start in (1, 1023, 1024, 2400):
        for ours, theirs in zip(islice(packs.starting(start), 50), whole[start : start + 50], strict=True):
            assert np.array_equal(ours, theirs)
    other = next(packs_of(conversations(40_000), seed=4).starting(0))
    assert not np.array_equal(other, whole[0])


@pytest.mark.parametrize(("world_size", "part_size"), [(1, 8), (2, 4), (4, 1)])
def test_ranks_share_the_packs_of_a_step_evenly(world_size: int, part_size: int) -> None:
    packs = packs_of(conversations(20_000))
    alone = list(islice(packs.starting(16), 16))
    seen = []
    for rank in range(world_size):
        for step in islice(
            PackSteps(packs, 2, 8, rank, world_size, part_size), 16 // world_size // part_size
        ):
            rows = [[p for p, row in zip(*step, strict=True) if row == n] for n in range(part_size)]
            assert all(rows)
            seen += rows
    assert sorted(seen) == sorted(pack.tolist() for pack in alone)


def test_what_fits_into_no_pack_is_left_out() -> None:
    lengths = Lengths(np.array([50, 101, 60, 10], np.int32), np.array([0, 0, 3, 1], np.int32))
    found = pack_window(lengths, PackLimits(100, 2))
    assert found[1] == found[2] == -1 and found[0] == found[3] == 0
    with pytest.raises(
        DataError, match=r"no sample has at most 9 tokens.*the longest has 101 tokens; raise train"
    ):
        window_size([lengths], PackLimits(9, 2))


def test_images_are_spread_where_texts_are_short() -> None:
    """Best fit would leave the short ones for the end, whose packs the images fill and not the tokens."""
    tokens = np.repeat([500, 90], 1000).astype(np.int32)
    lengths = Lengths(tokens, np.ones(2000, np.int32))
    packs = pack_window(lengths, NANOVLM).max() + 1
    assert packs <= 1.08 * tokens.sum() / 4096


@pytest.mark.parametrize("tokens", [4096, 1 << 20])
def test_every_sample_finds_a_pack_whatever_the_lengths(tokens: int) -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        size = int(random.integers(1, 60))
        lengths = Lengths(
            random.integers(1, tokens + 1, size).astype(np.int32),
            random.integers(0, 5, size).astype(np.int32),
        )
        found = pack_window(lengths, PackLimits(tokens, 4))
        assert (found >= 0).all() and np.bincount(found, lengths.tokens).max() <= tokens
        assert np.bincount(found, lengths.images).max() <= 4 and np.bincount(found).min() > 0
