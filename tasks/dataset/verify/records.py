"""What goes into the look at one shard, and what comes out: plain values that travel between processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.core.findings import Finding
from tasks.dataset.verify.tables import Shard

KEYS_SHOWN = 1000
"""Of the samples of one kind, for findings."""


@dataclass(frozen=True)
class Task:
    """A shard to look into: `name` relative to `folder`, which is local or remote.

    `expected`, `index` and `keys` are the shard's rows of the tables, None where there is no such table.
    `is_confirmed` says that index and keys are as they were built, by their checksums: a tar whose BLAKE3 is
    right then has the spans and keys that they tell. `decodes` is the level full.
    """

    folder: str
    name: str
    expected: Shard | None = None
    index: NDArray[np.void] | None = None
    keys: Sequence[str] | None = None
    is_confirmed: bool = False
    modality: str | None = None
    decodes: bool = False


@dataclass(frozen=True, slots=True)
class SampleFault:
    """One thing that is wrong with one sample. `key` is None only where not even the tables know it; `row`
    counts the shard's samples, None for one that is in no table's place."""

    code: str
    key: str | None
    member: str | None
    remedy: str
    evidence: dict[str, Any] = field(default_factory=dict)
    row: int | None = None


@dataclass(frozen=True)
class Kind:
    """The samples that have the same members: how many, and the keys of the first of them."""

    count: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Inside:
    """What was found in a shard.

    `blake3` is the file's own, None when it could not be read. `findings` are of the shard as a whole,
    `faults` of its samples, all of them, in the order of the samples. `keys` holds the xxh3_64 of each key in
    the shard, once, in order: whatever is twice among all shards' is in two of them. `kinds` counts samples
    by the sorted suffixes of their members, where no modality tells which are required. `undecoded` are the
    ends of suffixes that no decoder knows (level full). `lost` are the rows that a cut tar does not hold
    whole; they have no faults of their own.
    """

    name: str
    blake3: str | None = None
    size_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    faults: list[SampleFault] = field(default_factory=list)
    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    kinds: dict[tuple[str, ...], Kind] = field(default_factory=dict)
    undecoded: frozenset[str] = frozenset()
    lost: range = range(0)


@dataclass(frozen=True)
class BadSample:
    """A sample that may not be trusted, and the code of the first thing that is wrong with it."""

    split: str
    shard: str
    key: str
    reason: str
