"""What was found of the samples of a version, as a record that is kept beside the versions.

It is apart from `examine`, which finds it, because the process that starts a build reads it and needs neither
numpy nor Arrow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from tasks.core.files import read_json
from tasks.dataset.version.layout import QUALITY

TRAIN = "train"


@dataclass(frozen=True)
class ShownSample:
    """A sample that shows what was found: its name in the source, its place there, and a text or value where
    that says more."""

    split: str
    row: int
    key: str = ""
    source: str = ""
    note: str = ""


@dataclass(frozen=True)
class Found:
    """How many samples something was found in, of how many that were looked at, and the worst of them."""

    count: int = 0
    of: int = 0
    examples: Sequence[ShownSample] = ()

    @property
    def share(self) -> float:
        return self.count / self.of if self.of else 0.0


@dataclass(frozen=True)
class Cluster:
    """Samples that are equal or nearly equal; `members` are the first of `size`."""

    size: int
    is_exact: bool
    members: Sequence[ShownSample]


@dataclass(frozen=True)
class Assessment:
    """What was found of a version.

    `is_compared` is False where the samples were not compared with each other: there are `too_many`, or the
    tables do not record what they look like. `copies` and `alike` count by split the samples that equal, or
    nearly equal, an earlier one of their split; `leaked` counts those of a held-out split that equal or
    nearly equal one that is trained on, and `leaks` shows such pairs, some of each split. `pictures` and
    `captions` have what was found by the names of `kinds`. `classes` counts the samples per label, and
    `repeats` how many captions occur how often: `{"5": 200}` are 200 captions of five samples each. `judges`
    are the optional packages that took part.
    """

    version: str
    samples: Mapping[str, int]
    is_compared: bool = False
    too_many: bool = False
    copies: Mapping[str, int] = field(default_factory=dict)
    alike: Mapping[str, int] = field(default_factory=dict)
    leaked: Mapping[str, int] = field(default_factory=dict)
    leaks: Sequence[Cluster] = ()
    clusters: Sequence[Cluster] = ()
    pictures: Mapping[str, Found] = field(default_factory=dict)
    captions: Mapping[str, Found] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)
    judges: Sequence[str] = ()
    format: Literal[2] = 2

    @property
    def total(self) -> int:
        return sum(self.samples.values())

    @property
    def trained(self) -> str:
        return trained_split(self.samples)


def trained_split(splits: Collection[str]) -> str:
    """Return the split that is trained on: the first if none is named train."""
    return TRAIN if TRAIN in splits else next(iter(splits))


def path_of(version: Path) -> Path:
    """Return the file in which the assessment of a version of a dataset is kept, beside its versions."""
    return version.resolve().parent.parent / QUALITY / f"{version.resolve().name}.json"


def kept_assessment(version: Path) -> Assessment | None:
    """Return the assessment that is kept of a version; None if there is none of this format."""
    try:
        return ASSESSMENT.validate_python(read_json(path_of(version)))
    except (OSError, ValueError):
        return None


def false_negatives(repeats: Mapping[str, int], batch_size: int) -> float:
    """Return the expected share of the samples of a random batch whose caption another sample of the batch
    has, too: contrastive training pushes such pairs apart although they belong together.

    A caption of n of N samples meets itself with probability 1 - (1 - (n - 1) / (N - 1)) ** (batch - 1).
    """
    total = sum(int(time) * many for time, many in repeats.items())
    if total < 2:
        return 0.0
    expected = 0.0
    for time, many in repeats.items():
        other = (int(time) - 1) / (total - 1)
        expected += int(time) * many / total * (1.0 - (1.0 - other) ** (batch_size - 1))
    return expected


ASSESSMENT = TypeAdapter(Assessment)
