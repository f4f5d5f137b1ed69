"""What a look at raw data hands over, and how names and texts found in data are shown."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tasks.core.errors import TarmacError
from tasks.core.stores import StoreUnreachable
from tasks.core.units import parse_size, shorten
from tasks.dataset.rejects import Reject

LOOKED_AT = 20
"""Files, or cells, of a kind that are looked at where looking costs little."""

SHARDS = 8
"""As many as a dataset should have, where there are samples enough."""
LONGEST = 1000
"""Characters of a path, and of a message."""
Grade = Literal[0, 1, 2]
"""2: builds as it stands. 1: builds, but something was assumed that may be wrong. 0: most samples would be
rejected."""
Thing = TypeVar("Thing")
Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the config with its value, or a block of keys, and the reason for it.

    `is_alternative` keys are written commented out.
    """

    name: str
    value: Any
    why: str = ""
    is_alternative: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the data: what was seen as (what, evidence), warnings, and the config that follows.

    `dataset` are further keys of the dataset block, `label` the field that names a sample's class. `is_guess`
    where the captions are none that anybody wrote.
    """

    kind: str
    what: str
    modality: str
    samples: int
    grade: Grade
    seen: Sequence[tuple[str, str]]
    warnings: Sequence[str]
    source: Sequence[Key]
    dataset: Sequence[Key] = ()
    is_private: bool = False
    is_guess: bool = False
    label: str | None = None
    teacher_width: int | None = None
    """Numbers of a reinforced sample's embeddings, where they could be read."""
    volume_shape: Sequence[int] | None = None
    """The smallest (D, H, W) of the volumes looked at."""

    @property
    def path(self) -> str:
        """Where its source lies, as the config names it."""
        return next(str(key.value) for key in self.source if key.name == "path")

    def as_json(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "modality": self.modality,
            "samples": self.samples,
            "seen": [{"what": what, "evidence": shown(evidence, 400)} for what, evidence in self.seen],
            "warnings": [shown(warning, 400) for warning in self.warnings],
        }


def look_at_each(
    files: Sequence[str], look: Callable[[str], Seen]
) -> tuple[list[tuple[str, Seen]], list[str]]:
    """Each file with what a look at it gives, and a warning where some cannot be read; Unreachable."""
    found, broken = [], []
    for file in files:
        try:
            found.append((file, look(file)))
        except StoreUnreachable:
            raise
        except Reject as reject:
            broken.append(f"{shown(file)}: {reject.detail}")
        except (TarmacError, OSError, zipfile.BadZipFile, ValueError, RuntimeError) as error:
            broken.append(f"{shown(file)}: {shown(error, 100)}")
    warnings = [f"{len(broken)} of {len(files)} looked at cannot be read: {broken[0]}"] if broken else []
    return found, warnings


def spread(things: Sequence[Thing], most: int) -> list[Thing]:
    """At most so many of them, evenly spread from the first to the last."""
    if len(things) <= most:
        return list(things)
    return [things[number * (len(things) - 1) // (most - 1)] for number in range(most)]


def shown(text: object, limit: int = 60) -> str:
    """A name or text from the data on one line, whatever it holds."""
    clean = str(text).encode("utf-8", "replace").decode()
    return shorten("".join(char if char.isprintable() else " " for char in clean), limit)


def enumerate_names(names: Sequence[object], most: int = 4) -> str:
    """`a, b, c … z`."""
    clean = [shown(name, 40) for name in names]
    if len(clean) <= most:
        return ", ".join(clean)
    return f"{', '.join(clean[: most - 1])} … {clean[-1]}"


def splits_key(samples: int, group_by: str | None = None, why: str = "") -> Key:
    """The share held out, larger where there are few samples."""
    share = 0.15 if samples < 10_000 else 0.05 if samples < 100_000 else 0.01
    grouped = {} if group_by is None else {"group_by": group_by}
    why = why or "held out by key hash: a sample never changes sides"
    return Key("splits", {"val": share, **grouped}, why)


def shard_key(samples: int, each_bytes: float, most: str = "256MB", *, is_kept: bool = True) -> Key:
    """Shards of at most `most` bytes; where these would be fewer than eight, about eight, so that every
    worker of every rank has one to read. Of samples that are not kept as they are, a build does not know the
    bytes beforehand, so it takes their number alone."""
    each = max(SHARDS, -(-samples // SHARDS))
    if samples * each_bytes < SHARDS * parse_size(most):
        return Key("shard", {"samples": each}, f"a maximum; or {{bytes: {most}}}" if is_kept else "a maximum")
    if not is_kept:
        return Key("shard", {"samples": max(1, round(parse_size(most) / each_bytes))}, "a maximum")
    return Key("shard", {"bytes": most}, "a maximum; or {samples: 10000}")
