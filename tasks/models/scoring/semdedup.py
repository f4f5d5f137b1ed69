"""Finds samples whose pictures show the same thing, by their embeddings.

Source: A. Abbas et al., "SemDeDup: Data-efficient learning at web-scale through semantic deduplication"
(2023). The embeddings are clustered by k-means on the sphere, and only pairs within a cluster are compared.
In a cluster the samples are ordered from the farthest from its centroid to the nearest, and a sample is a
duplicate if one before it is more similar than 1 - epsilon: what is farthest, and says most, stays. Instead
of one epsilon, the highest similarity to a sample before it is returned, of which any threshold can be asked.

Of two nearly equal samples that fall into different clusters neither is found. Memory holds the embeddings of
one cluster, and the similarities of BLOCK samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PER_CLUSTER = 2048
"""Samples per cluster on average: fewer compare faster and find less."""
MOST_CLUSTERS = 50_000
PER_CENTROID = 64
"""Samples per centroid that the centroids are computed from."""
ROUNDS = 20
BLOCK = 4096
MOST_BEFORE = 1 << 16
"""In a cluster with more samples than this each is compared with as many before it, whose distances to the
centroid are the most like its own."""
FIRST = -1.0
"""The similarity of a sample that has none before it."""

Embeddings = NDArray[np.float16]
"""[samples, width], rows of length 1; may be mapped from a file."""


class Duplicates(NamedTuple):
    """For each sample the highest cosine similarity to one that precedes it, and the row of that one; FIRST
    and -1 where none does."""

    similarity: NDArray[np.float32]
    of: NDArray[np.int64]


def find_duplicates(
    embeddings: Embeddings,
    clusters: int | None = None,
    device: str = "cpu",
    progress: Callable[[int], None] = lambda done: None,
) -> Duplicates:
    """Compare the samples; the same embeddings in the same order give the same result on one device."""
    count = len(embeddings)
    found = Duplicates(np.full(count, FIRST, np.float32), np.full(count, -1, np.int64))
    if not count:
        return found
    clusters = clusters or min(max(1, round(count / PER_CLUSTER)), MOST_CLUSTERS)
    centroids = _centroids(embeddings, min(clusters, count), device)
    cluster, nearness = _assigned(embeddings, centroids)
    order = np.lexsort((np.arange(count), nearness, cluster))
    ends = np.flatnonzero(np.diff(cluster[order], append=-1)) + 1
    start = 0
    for end in ends.tolist():
        _compare(embeddings, order[start:end], device, found)
        progress(end)
        start = end
    return found


def _compare(embeddings: Embeddings, rows: NDArray[np.int64], device: str, found: Duplicates) -> None:
    """Compare each of the rows with those before it."""
    for start in range(0, len(rows), BLOCK):
        mine = rows[start : start + BLOCK]
        own = _tensor(embeddings, mine, device)
        best = torch.full((len(mine),), FIRST, device=device)
        of = torch.full((len(mine),), -1, dtype=torch.long, device=device)
        for first in range(max(0, start - MOST_BEFORE), start + 1, BLOCK):
            before = rows[first : min(first + BLOCK, start) if first < start else start + BLOCK]
            others = own if first == start else _tensor(embeddings, before, device)
            similar = own @ others.T
            if first == start:
                similar = similar.tril(-1) + torch.full_like(similar, 2 * FIRST).triu()
            highest, place = similar.max(dim=1)
            is_better = highest > best
            best = torch.where(is_better, highest, best)
            of = torch.where(is_better, place + first, of)
        places = of.cpu().numpy()
        found.similarity[mine] = best.clamp(FIRST, 1.0).cpu().numpy()
        found.of[mine] = np.where(places >= 0, rows[places], -1)


def _centroids(embeddings: Embeddings, clusters: int, device: str) -> Tensor:
    """Return [clusters, width], rows of length 1: the centroids of evenly spread samples by k-means."""
    count = len(embeddings)
    chosen = np.unique(np.linspace(0, count - 1, min(count, clusters * PER_CENTROID)).astype(np.int64))
    some = _tensor(embeddings, chosen, device)
    centroids = some[np.linspace(0, len(some) - 1, clusters).astype(np.int64)].clone()
    label = torch.full((len(some),), -1, device=device)
    for _ in range(ROUNDS):
        nearness, now = _nearest(some, centroids)
        if torch.equal(now, label):
            break
        label = now
        sums = torch.zeros_like(centroids).index_add_(0, label, some)
        empty = torch.bincount(label, minlength=clusters) == 0
        worst = nearness.argsort()[: int(empty.sum())]
        sums[empty.nonzero()[: len(worst), 0]] = some[worst]  # a cluster that lost all takes an outlier
        centroids = torch.nn.functional.normalize(sums, dim=1)
    return centroids


def _assigned(embeddings: Embeddings, centroids: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return for each sample its nearest centroid and the similarity to it."""
    parts = []
    for start in range(0, len(embeddings), BLOCK):
        rows = np.arange(start, min(start + BLOCK, len(embeddings)))
        nearness, cluster = _nearest(_tensor(embeddings, rows, str(centroids.device)), centroids)
        parts.append((cluster.cpu().numpy(), nearness.cpu().numpy()))
    clusters, nearnesses = zip(*parts, strict=True)
    return np.concatenate(clusters), np.concatenate(nearnesses)


def _nearest(some: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the similarity to the nearest centroid and its number, BLOCK samples at a time."""
    found = [(part @ centroids.T).max(dim=1) for part in torch.split(some, BLOCK)]
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])


def _tensor(embeddings: Embeddings, rows: NDArray[np.int64], device: str) -> Tensor:
    return torch.from_numpy(np.asarray(embeddings[rows], np.float32)).to(device)
