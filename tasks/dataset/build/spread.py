"""A few samples, evenly spread over many leaves: what a pilot tries and what a forecast measures."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate

from tasks.dataset.build.catalogue import Leaf


def spread(leaves: Iterable[Leaf], count: int) -> list[int]:
    """The ranks of at most `count` samples of these leaves."""
    chosen = list(leaves)
    ends = list(accumulate(leaf.samples for leaf in chosen))
    total = ends[-1] if ends else 0
    ranks = []
    for number in range(min(count, total)):
        place = number * total // min(count, total)
        leaf = bisect_right(ends, place)
        ranks.append(chosen[leaf].stop - (ends[leaf] - place))
    return ranks
