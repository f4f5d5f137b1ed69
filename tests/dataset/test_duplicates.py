"""The join finds all near pairs that comparing every pair finds, and nothing else."""

from dataclasses import fields

import numpy as np
import pytest

from tasks.dataset.duplicates import (
    ALIKE,
    NEAR,
    NEAR_FINE,
    Clusters,
    Looks,
    clusters_of,
    equal,
    like_first,
    nearly_equal,
)


def flipped(hashes: np.ndarray, bits: int, rng: np.random.Generator) -> np.ndarray:
    """Change `bits` different bits of each 64-bit hash."""
    places = np.argsort(rng.random((len(hashes), 64)), axis=1)[:, :bits].astype(np.uint64)
    return hashes ^ np.bitwise_or.reduce(np.uint64(1) << places, axis=1) if bits else hashes.copy()


def looks(rows: int, rng: np.random.Generator) -> Looks:
    whole = lambda *shape: rng.integers(0, 2**64, shape, dtype=np.uint64)  # noqa: E731
    spectrum = rng.integers(-127, 128, (rows, 63), dtype=np.int8)
    return Looks(
        whole(rows), whole(rows), whole(rows), whole(rows, 3), spectrum, np.full(rows, 50, np.float32)
    )


def by_brute_force(some: Looks) -> np.ndarray:
    rows = len(some.coarse)
    left, right = np.triu_indices(rows, 1)
    near = np.bitwise_count(some.coarse[left] ^ some.coarse[right]) <= NEAR
    near &= np.bitwise_count(some.fine[left] ^ some.fine[right]).sum(axis=1) <= NEAR_FINE
    one, other = (some.spectrum[side].astype(float) for side in (left, right))
    near &= (one * other).sum(axis=1) >= ALIKE * np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    clusters = Clusters(rows)
    clusters.join(np.column_stack((left, right))[near])
    return clusters.labels()


def planted(rows: int, seed: int) -> Looks:
    """Half of the rows are copies of another one: changed by none to twelve bits, some twice."""
    rng = np.random.default_rng(seed)
    some = looks(rows, rng)
    for row in range(rows // 2, rows):
        source = int(rng.integers(0, row))
        some.coarse[row] = flipped(some.coarse[source : source + 1], int(rng.integers(0, 13)), rng)[0]
        some.fine[row] = flipped(some.fine[source], int(rng.integers(0, 22)), rng)
        noise = rng.integers(-12, 13, 63) * (rng.random() < 0.7)
        some.spectrum[row] = np.clip(some.spectrum[source] + noise, -127, 127)
    return some


@pytest.mark.parametrize("seed", range(4))
def test_the_join_finds_what_comparing_all_pairs_finds(seed: int) -> None:
    some = planted(1500, seed)
    expected = by_brute_force(some)
    assert (nearly_equal(some, np.arange(len(some.coarse))) == expected).all()
    assert 250 < (expected != np.arange(1500)).sum() < 750


def test_pictures_of_one_kind_take_bounded_work() -> None:
    """All share 40 bits, so that every sorted table has long stretches of equal keys."""
    rng = np.random.default_rng(0)
    some = looks(6_000, rng)
    some.coarse[:] = (some.coarse & np.uint64(0xFFFFFF)) | np.uint64(0x5A5A5A5A5A << 24)
    some.coarse[3_000:] = some.coarse[:3_000]
    some.fine[3_000:] = some.fine[:3_000]
    some.spectrum[3_000:] = some.spectrum[:3_000]
    assert (nearly_equal(some, np.arange(len(some.coarse)))[3_000:] == np.arange(3_000)).all()


def ordered(some: Looks, order: np.ndarray) -> Looks:
    return Looks(*(getattr(some, one.name)[order] for one in fields(some)))


def test_the_clusters_depend_neither_on_the_order_of_samples_nor_on_how_a_host_sorts() -> None:
    """In each sorted table are stretches of equal keys that are longer than what is compared of them."""
    rng = np.random.default_rng(3)
    some = looks(3_000, rng)
    some.coarse[:] = (some.coarse & np.uint64(0x3FF)) | np.uint64(0x5A5A5A5A5A << 24)
    some.fine[:] = flipped(np.repeat(some.fine[:30], 100, axis=0).ravel(), 3, rng).reshape(-1, 3)
    some.spectrum[:] = np.repeat(some.spectrum[:30], 100, axis=0)
    some = ordered(some, rng.permutation(3_000))
    found = clusters_of(some, by_text=False)[1]
    assert 100 < len(set(found.tolist())) < 2_500
    for _ in range(3):
        order = rng.permutation(3_000)
        again = order[clusters_of(ordered(some, order), by_text=False)[1]]
        pairs = set(zip(found[order].tolist(), again.tolist(), strict=True))
        assert len(pairs) == len(set(found.tolist())) == len(set(again.tolist()))


@pytest.mark.parametrize("by_text", [False, True])
def test_a_sample_is_like_another_by_the_same_rules_as_all_are_compared(by_text: bool) -> None:
    """Row 0 stands beside an exact copy, a near one, a copy with another text and another picture; and once
    more as pictures of one colour, which are copies of none."""
    rng = np.random.default_rng(1)
    some = looks(5, rng)
    for values in (some.content, some.coarse, some.fine, some.spectrum):
        values[:4] = values[0]
    some.content[2] += 1
    some.text[:3] = 7
    exact, near = like_first(some, by_text=by_text)
    assert exact.tolist() == [True, True, False, not by_text, False]
    assert near.tolist() == [True, True, True, not by_text, False]
    some.contrast[:] = 0
    assert not np.any(like_first(some, by_text=by_text))
    assert clusters_of(some, by_text=by_text)[1].tolist() == [0, 1, 2, 3, 4]


def test_equal_rows_are_named_by_the_first() -> None:
    assert equal(np.array([7, 3, 7, 3, 9], np.uint64)).tolist() == [0, 1, 0, 1, 4]
    assert equal(np.array([7, 7, 7], np.uint64), np.array([1, 2, 1], np.uint64)).tolist() == [0, 1, 0]
    assert equal(np.array([], np.uint64)).tolist() == []


def test_chains_of_pairs_are_one_cluster() -> None:
    clusters = Clusters(8)
    clusters.join(np.array([[6, 5], [5, 4], [7, 6], [1, 0]]))
    clusters.join(np.array([[4, 3]]))
    assert clusters.labels().tolist() == [0, 0, 2, 3, 3, 3, 3, 3]


def test_a_conversation_is_a_copy_only_if_its_text_is_the_same() -> None:
    rng = np.random.default_rng(0)
    some = looks(4, rng)
    for values in (some.content, some.coarse, some.fine, some.spectrum):
        values[:] = values[0]
    some.text[:] = (1, 2, 1, 2)
    assert clusters_of(some, by_text=False)[1].tolist() == [0, 0, 0, 0]
    assert clusters_of(some, by_text=True)[1].tolist() == [0, 1, 0, 1]


def test_volumes_that_merely_look_alike_are_no_copies() -> None:
    some = looks(3, np.random.default_rng(0))
    for values in (some.coarse, some.fine, some.spectrum):
        values[:] = values[0]
    some.contrast[:] = np.nan
    some.content[2] = some.content[0]
    assert clusters_of(some, by_text=False)[1].tolist() == [0, 1, 0]


def test_what_was_not_measured_is_no_copy() -> None:
    unknown = Looks(
        *(np.zeros(3, np.uint64) for _ in range(3)),
        np.zeros((3, 3), np.uint64),
        np.zeros((3, 63), np.int8),
        np.full(3, np.nan, np.float32),
    )
    assert clusters_of(unknown, by_text=False)[1].tolist() == [0, 1, 2]
    assert clusters_of(unknown, by_text=True)[1].tolist() == [0, 1, 2]
