"""What is known of a raw sample before it is converted, and of one that was not taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tasks.dataset.rejects import Reason


@dataclass(frozen=True, slots=True)
class Spilled:
    """Where the raw members of a sample from a sequential source wait to be converted."""

    part: int
    offset: int
    length: int


class Entry(NamedTuple):  # made in a quarter of the time that a frozen dataclass takes
    """A listed sample that is to be converted.

    `number` counts from 0 over all sources in their order, `source` counts the config's sources. `size`
    (bytes) and `stamp` are those of its files, or of its raw members with their digest where it is `spilled`.
    """

    number: int
    key: str
    original_key: str
    place: str
    source: int
    file: str
    size: int
    stamp: str
    content: str
    split: str
    group: str | None
    spilled: Spilled | None = None


class Identity(NamedTuple):
    """What must be the same of a source's sample for it to count as unchanged; not where it stands."""

    source: int
    key: str
    original_key: str
    file: str
    size: int
    stamp: str
    content: str
    group: str | None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A raw sample that was not taken, as `rejects.parquet` tells it."""

    number: int
    key: str
    original_key: str
    reason: Reason
    detail: str
    source: str
    file: str
