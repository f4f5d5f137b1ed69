"""Which samples to show: spread evenly, so that the page shows the dataset and not its beginning.

Shards are filled in the order of key hashes, so an even spread is a random sample that is always the same.
"""

from __future__ import annotations

from collections.abc import Mapping

EACH: Mapping[str, int] = {"image_text": 60, "reinforced": 36, "chat": 24, "volume_report": 8}
"""Samples of a split by modality: as many as one looks at, and as a page can hold."""
SPLITS = 3
"""Splits that are shown in full number; more of them share what these would have."""


def spread(total: int, most: int) -> list[int]:
    """At most `most` of 0..total-1, evenly spaced, from the middle of each stretch."""
    if total <= most:
        return list(range(total))
    return [(2 * step + 1) * total // (2 * most) for step in range(most)]


def choose(samples: Mapping[str, int], modality: str) -> dict[str, list[int]]:
    """Rows of each split's index to show, given how many samples each has."""
    each = EACH.get(modality, min(EACH.values()))
    most = max(1, min(each, each * SPLITS // max(1, len(samples))))
    return {split: spread(total, most) for split, total in samples.items()}
