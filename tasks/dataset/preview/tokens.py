"""How many tokens captions have, from a bounded number of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tasks.core.errors import DataError
from tasks.dataset.preview.choice import spread
from tasks.dataset.preview.histogram import Histogram
from tasks.dataset.preview.samples import SampleReader

CountTokens = Callable[[str], int]
CONTEXT = 77
"""Tokens that CLIP's text encoder reads; the rest of a caption is cut off."""
CAPTIONS = 2000
"""Of them, spread evenly, tokens are counted."""
TITLE, UNIT = "Tokens a caption", "tokens"
TOKENIZED = ("image_text", "reinforced")


def read_tokens(version: Path, splits: Mapping[str, int], count_tokens: CountTokens) -> Histogram:
    """Of captions spread evenly over all splits (samples by name); one that cannot be read is left out."""
    values = Histogram()
    total = sum(splits.values())
    for split, samples in splits.items():
        share = max(1, CAPTIONS * samples // max(1, total))
        try:
            reader = SampleReader(version, split)
        except DataError:
            continue  # the gallery says so
        captions = (reader.read_text(row) for row in spread(min(samples, len(reader)), share))
        values.add(np.array([count_tokens(text) for text in captions if text is not None]))
    return values
