"""What the rules of every modality do: take a raw sample in, and judge one that is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasks.core.schema import Dataset
from tasks.dataset.rejects import Reason
from tasks.dataset.tar.writer import Buffer, Members


class Taken(NamedTuple):
    """A sample as it goes into a shard, and its cheap statistics."""

    members: Mapping[str, Buffer]
    statistics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a stored member."""

    code: str
    member: str
    evidence: str


def anything_goes(dataset: Dataset) -> None:
    """The check of a modality that fits every config."""


@dataclass(frozen=True)
class Modality:
    """The rules of one modality.

    `take` checks raw members and returns what is stored, or raises Reject. `judge` checks stored members
    whole. `required` holds the member sets of which one of each must be there. `statistics` names the columns
    that `take` returns, and their types (int32 or float32 in `samples/`). `undecodable` is the reason of
    whatever no rule foresaw.
    `check` raises UsageError for a config that the modality cannot follow.
    """

    take: Callable[[Members, Dataset], Taken]
    judge: Callable[[Mapping[str, bytes]], list[Fault]]
    required: tuple[tuple[str, ...], ...]
    statistics: Mapping[str, type[int] | type[float]]
    undecodable: Reason
    check: Callable[[Dataset], None] = anything_goes


def missing(required: tuple[tuple[str, ...], ...], there: Mapping[str, Any]) -> list[str]:
    """The required members that are not there, as `jpg|png|webp` where one of several would do."""
    return ["|".join(choices) for choices in required if not any(choice in there for choice in choices)]
