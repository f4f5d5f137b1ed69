"""Finds held-out samples that are trained on too: the same bytes under another key.

Samples are compared by the content of their members. Only those of the same stored length can be equal, so a
few reads settle it; a split by key keeps copies apart only if they have the same key.
"""

from __future__ import annotations

import time
from zlib import crc32

import numpy as np

from tasks.core.errors import TarmacError
from tasks.core.findings import Finding, Severity
from tasks.loader.indexed import IndexedReader

MOST_EXAMINED = 64
"""Held-out samples that are looked for, evenly spread."""
MOST_TRAINED = 5_000_000
MOST_S = 0.3
OFTEN = 0.02
"""The share of leaked samples that is a warning: data from the web always holds a few copies."""


def find_leak(held_out: IndexedReader, trained: IndexedReader, *, is_private: bool = False) -> Finding | None:
    """Look for samples of a held-out split among those of the same length that are trained on, for at most
    0.3 s; where the data `is_private` the finding names no keys."""
    if held_out.is_remote or trained.is_remote:
        return None
    deadline = time.monotonic() + MOST_S
    spread = np.linspace(0, len(held_out) - 1, min(len(held_out), MOST_EXAMINED))
    by_length: dict[int, list[int]] = {}
    for number in np.unique(spread.astype(int)).tolist():
        by_length.setdefault(int(held_out.lengths(number + 1)[number]), []).append(number)
    lengths = trained.lengths(MOST_TRAINED)
    alike = np.flatnonzero(np.isin(lengths, list(by_length)))
    examined, leaked, example = 0, 0, ""
    for length in sorted(by_length, key=lambda one: int((lengths[alike] == one).sum())):
        wanted = {
            content: key
            for key, content in (_content(held_out, number) for number in by_length[length])
            if content is not None
        }
        for number in alike[lengths[alike] == length].tolist():
            if time.monotonic() > deadline:
                break
            key, content = _content(trained, number)
            if content in wanted:
                leaked += 1
                twin = wanted.pop(content)
                example = example or f"{twin} is {key}"
        else:
            examined += len(by_length[length])
    if not leaked:
        return None
    what = f"{leaked} of {max(examined, leaked)} samples of split {held_out.split} are trained on too"
    evidence = {"what": what, **({} if is_private else {"for example": example})}
    remedy = "keep copies on one side (dataset.splits.group_by) or leave them out, and build again"
    severity: Severity = "warning" if leaked >= OFTEN * examined else "info"
    return Finding("split.leak", severity, remedy, where={"split": held_out.split}, evidence=evidence)


def _content(reader: IndexedReader, number: int) -> tuple[str, int | None]:
    """Return the key of a sample, and a digest of its members; None where it cannot be read. JSON beside a
    text is left out, because it often holds the name of the file that the sample was made of."""
    try:
        sample = reader.read(number)
    except TarmacError:
        return "", None
    digest = 0
    for name, data in sorted(sample.members.items()):
        if name != "json" or "txt" not in sample.members:
            digest = crc32(data, crc32(name.encode(), digest))
    return sample.key, digest
