"""Semantic duplicates against a comparison of all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.models.scoring import semdedup
from tasks.models.scoring.semdedup import FIRST, find_duplicates

COUNT, WIDTH, PLANTED, THRESHOLD = 3000, 64, 300, 0.95


@pytest.fixture(scope="module")
def embeddings() -> NDArray[np.float16]:
    """Random embeddings, some of them with a near copy."""
    draw = np.random.default_rng(0)
    own = draw.normal(size=(COUNT, WIDTH))
    copies = own[draw.choice(COUNT, PLANTED, replace=False)] + draw.normal(size=(PLANTED, WIDTH)) * 0.12
    both = np.concatenate([own, copies])
    return (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float16)


def all_pairs(embeddings: NDArray[np.float16], threshold: float = THRESHOLD) -> set[tuple[int, int]]:
    some = embeddings.astype(np.float32)
    return {(int(one), int(other)) for one, other in np.argwhere(np.triu(some @ some.T, 1) > threshold)}


def pairs_of(found: semdedup.Duplicates, threshold: float = THRESHOLD) -> set[tuple[int, int]]:
    rows = np.flatnonzero(found.similarity > threshold).tolist()
    return {(min(row, int(found.of[row])), max(row, int(found.of[row]))) for row in rows}


def test_in_one_cluster_all_pairs_are_found(embeddings: NDArray[np.float16]) -> None:
    right = all_pairs(embeddings)
    assert len(right) >= 0.9 * PLANTED
    assert pairs_of(find_duplicates(embeddings, clusters=1)) == right


def test_clusters_find_nearly_all_and_nothing_else(embeddings: NDArray[np.float16]) -> None:
    """Random directions are the hardest case, because no cluster is apart from the others."""
    right, found = all_pairs(embeddings), pairs_of(find_duplicates(embeddings, clusters=16))
    assert found <= right, "precision"
    assert len(found) >= 0.85 * len(right), "recall"


def test_in_data_with_groups_of_its_own_clusters_find_all() -> None:
    draw = np.random.default_rng(1)
    own = np.repeat(draw.normal(size=(20, WIDTH)), 100, axis=0) + draw.normal(size=(2000, WIDTH)) * 0.5
    both = np.concatenate([own, own[::7] + draw.normal(size=(len(own[::7]), WIDTH)) * 0.05])
    both = (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float16)
    right, found = all_pairs(both, 0.98), pairs_of(find_duplicates(both, clusters=16), 0.98)
    assert found <= right and len(found) >= 0.98 * len(right) >= 200


def test_each_pair_leaves_one_and_what_is_farthest_from_the_centroid_stays() -> None:
    centre, near, far = np.eye(3)[0], np.array([0.98, 0.199, 0]), np.array([0.96, 0.28, 0])
    some = np.array([centre, centre, near, far])
    some = (some / np.linalg.norm(some, axis=1, keepdims=True)).astype(np.float16)
    found = find_duplicates(some, clusters=1)
    assert found.similarity[3] == FIRST and found.of[3] == -1, "the farthest has none before it"
    assert (found.similarity[:3] > 0.95).all() and found.of[2] == 3


def test_blocks_do_not_change_the_result(
    embeddings: NDArray[np.float16], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = find_duplicates(embeddings, clusters=4)
    monkeypatch.setattr(semdedup, "BLOCK", 97)
    parts = find_duplicates(embeddings, clusters=4)
    assert np.allclose(whole.similarity, parts.similarity, atol=1e-5)
    assert pairs_of(whole) == pairs_of(parts)


def test_nothing_and_equal_embeddings_are_no_trouble() -> None:
    assert not len(find_duplicates(np.empty((0, 4), np.float16)).of)
    same = np.tile(np.array([[0.6, 0.8]], np.float16), (50, 1))
    found = find_duplicates(same, clusters=8)
    assert (found.similarity > 0.99).sum() >= 42, "one stays in each cluster at most"
