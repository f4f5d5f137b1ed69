"""What the rules of every modality do: take a raw sample in, and judge one that is stored."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tasks.core.schema import Dataset
from tasks.dataset.rejects import Reason
from tasks.dataset.tar.format import Buffer, Members

Required = tuple[tuple[str, ...], ...]
"""Sets of members, of each of which a sample must have one."""


class AcceptedSample(NamedTuple):
    """A raw sample that was taken: the members to store, and its cheap statistics."""

    members: Mapping[str, Buffer]
    statistics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class MemberFault:
    """What is wrong with a stored member."""

    code: str
    member: str
    evidence: str


def _fits(dataset: Dataset) -> None:
    """The check of a modality that fits every config."""


@dataclass(frozen=True)
class Modality:
    """The rules of one modality.

    `take` checks raw members and returns what is stored, or raises Reject. `judge` decodes stored members and
    returns what is wrong with them; `unjudged` names the members that it cannot judge on this machine, for
    want of a package. `statistics` are the columns that `take` fills, with their types (int32 or float32 in
    `samples/`). `undecodable` is the reason of a reject that no rule foresaw. `check` raises UsageError for a
    config that the modality cannot follow.
    """

    take: Callable[[Members, Dataset], AcceptedSample]
    judge: Callable[[Mapping[str, bytes]], list[MemberFault]]
    required: Required
    statistics: Mapping[str, type[int] | type[float]]
    undecodable: Reason
    check: Callable[[Dataset], None] = _fits
    unjudged: Callable[[], tuple[str, ...]] = tuple


def missing(required: Required, there: Container[str]) -> list[str]:
    """The required members that are not there, as `jpg|png|webp` where one of several would do."""
    return ["|".join(choices) for choices in required if not any(choice in there for choice in choices)]
