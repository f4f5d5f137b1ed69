"""Which samples the page of a version shows."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.dataset.sample_reader import spread

SHOWN_PER_SPLIT: Mapping[str, int] = {"image_text": 60, "reinforced": 36, "chat": 24, "volume_report": 8}
"""Samples shown per split, by modality: as many as a person looks at and a page can hold."""
FULL_SPLITS = 3
"""Up to this many splits show their full number of samples; more splits share that total."""


def choose_rows(samples: Mapping[str, int], modality: str) -> dict[str, list[int]]:
    """Return the rows to show of each split's index, given the number of samples per split."""
    each = SHOWN_PER_SPLIT.get(modality, min(SHOWN_PER_SPLIT.values()))
    most = max(1, min(each, each * FULL_SPLITS // max(1, len(samples))))
    return {split: spread(total, most) for split, total in samples.items()}
