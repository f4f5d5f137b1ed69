"""The contract of every modality: to accept a raw sample, and to judge a stored one."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tasks.core.schema import Dataset
from tasks.dataset.tar.format import Buffer, Members
from tasks.dataset.version.rejects import Reason


class Statistic(Enum):
    """The kinds of what is known of a sample without opening it. A HASH has 64 bits, FINE and SPECTRUM are
    those of `measures`, a WORD is one of a few."""

    COUNT = "count"
    NUMBER = "number"
    HASH = "hash"
    FINE = "fine"
    SPECTRUM = "spectrum"
    WORD = "word"


Required = tuple[tuple[str, ...], ...]
"""Sets of members; a sample must have one member of each set."""


CLIP_SCORES = ("clip_score", "aesthetic_score", "duplicate_similarity")
"""What a CLIP model may say of a picture with its caption."""

Statistics = Mapping[str, float | bytes | str | None]
"""Values by the names of a modality's statistics; None for what was not measured."""


class AcceptedSample(NamedTuple):
    """The members to store of an accepted sample, and its cheap statistics."""

    members: Mapping[str, Buffer]
    statistics: Statistics


@dataclass(frozen=True, slots=True)
class MemberFault:
    """A stored member, the code of its fault and the evidence."""

    code: str
    member: str
    evidence: str


@dataclass(frozen=True)
class Modality:
    """The rules of one modality.

    `take` checks raw members and returns what is stored, or raises Reject. `judge` decodes stored members and
    returns their faults; `unjudged` names the members that it cannot judge on this machine because a package
    is missing. `statistics` are the columns of `samples/` that `take` fills, with their kinds. `undecodable`
    is the reason of a reject that no rule foresaw. `scores` are the names of what models may say of a sample
    once it is built (`tasks.dataset.scores`). `check` raises UsageError for a config that the modality
    cannot follow.
    """

    take: Callable[[Members, Dataset], AcceptedSample]
    judge: Callable[[Mapping[str, bytes]], list[MemberFault]]
    required: Required
    statistics: Mapping[str, Statistic]
    undecodable: Reason
    scores: tuple[str, ...] = ()
    check: Callable[[Dataset], None] = lambda dataset: None
    unjudged: Callable[[], tuple[str, ...]] = tuple


def missing(required: Required, there: Container[str]) -> list[str]:
    """Return the required members that are missing, as `jpg|png|webp` where one of several would do."""
    return ["|".join(choices) for choices in required if not any(choice in there for choice in choices)]
