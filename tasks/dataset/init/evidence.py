"""The keys that `tarmac init` proposes with their evidence, and how text from the data is shown."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from tasks.core.errors import TarmacError
from tasks.core.stores import StoreUnreachable
from tasks.core.units import parse_size, shorten
from tasks.dataset.version.rejects import Reject

LOOKED_AT = 20
"""Files or cells of one kind that are examined where examining them is cheap."""
SHARDS = 8
"""The least number of shards to aim for where there are enough samples."""
BUDGET = 0.05
"""The share of rejects that a config allows unless there is a reason for another."""
LONGEST = 1000
"""Characters of a path, and of a message."""
Grade = Literal[0, 1, 2]
"""2: builds as it stands. 1: builds, but an assumption may be wrong. 0: most samples would be rejected."""
Thing = TypeVar("Thing")
Observation = TypeVar("Observation")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of the config, the value proposed for it (or a block of further keys), and the evidence.

    Alternatives are written commented out.
    """

    key: str
    value: Any
    evidence: str = ""
    is_alternative: bool = False


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read the data: the keys that make up the config's `source` and `dataset` blocks.

    `label` is the field that names a sample's class. `is_guess` is true where nobody wrote the captions.
    """

    kind: str
    what: str
    modality: str
    samples: int
    grade: Grade
    source: Sequence[ConfigKey]
    dataset: Sequence[ConfigKey]
    warnings: Sequence[str] = ()
    is_private: bool = False
    is_guess: bool = False
    label: ConfigKey | None = None
    reject_budget: float = BUDGET
    teacher_width: int | None = None
    """Width of a reinforced sample's embeddings, where they could be read."""
    volume_shape: Sequence[int] | None = None
    """The smallest (D, H, W) of the volumes examined."""

    @property
    def path(self) -> str:
        """Where the source lies, as the config names it."""
        return next(str(one.value) for one in self.source if one.key == "path")

    @property
    def seen(self) -> dict[str, str]:
        """The evidence for the keys of the source and for the label, by key."""
        found = (*self.source, self.label) if self.label is not None else self.source
        return {
            one.key: f"{shown(one.value)}: {one.evidence}" if isinstance(one.value, str) else one.evidence
            for one in found
            if one.evidence and not one.is_alternative
        }

    def as_json(self) -> Mapping[str, Any]:
        return {
            "kind": self.kind,
            "modality": self.modality,
            "samples": self.samples,
            "seen": [{"what": key, "evidence": shown(evidence, 400)} for key, evidence in self.seen.items()],
            "warnings": [shown(warning, 400) for warning in self.warnings],
        }


def observe(files: Sequence[str], look: Callable[[str], Observation]) -> list[tuple[str, Observation]]:
    """Return each file with what `look` reads from it. Files that cannot be read are left out, since the
    build reports each of them. Unreachable when the store is."""
    found = []
    for file in files:
        try:
            found.append((file, look(file)))
        except StoreUnreachable:
            raise
        except (Reject, TarmacError, OSError, zipfile.BadZipFile, ValueError, RuntimeError):
            continue
    return found


def spread(things: Sequence[Thing], most: int) -> list[Thing]:
    """Return at most `most` of the things, evenly spread from the first to the last."""
    if len(things) <= most:
        return list(things)
    return [things[number * (len(things) - 1) // (most - 1)] for number in range(most)]


def shown(text: object, limit: int = 60) -> str:
    """Return a name or text from the data on one line, with unprintable characters as spaces."""
    clean = str(text).encode("utf-8", "replace").decode()
    return shorten("".join(char if char.isprintable() else " " for char in clean), limit)


def enumerate_names(names: Sequence[object], most: int = 4) -> str:
    """`a, b, c … z`."""
    clean = [shown(name, 40) for name in names]
    if len(clean) <= most:
        return ", ".join(clean)
    return f"{', '.join(clean[: most - 1])} … {clean[-1]}"


def propose_splits(samples: int, group_by: str | None = None, why: str = "") -> ConfigKey:
    """Hold out a share of the samples, a larger one where there are few samples."""
    share = 0.15 if samples < 10_000 else 0.05 if samples < 100_000 else 0.01
    grouped = {} if group_by is None else {"group_by": group_by}
    why = why or "held out by key hash: a sample never changes sides"
    return ConfigKey("splits", {"val": share, **grouped}, why)


def propose_shards(
    samples: int, each_bytes: float, most: str = "256MB", *, is_kept: bool = True
) -> ConfigKey:
    """Propose shards of at most `most` bytes, or about eight where that would give fewer, so that every
    worker of every rank has one to read. A build that encodes its samples (not `is_kept`) does not know
    their bytes beforehand, so there the limit is a number of samples."""
    each = max(SHARDS, -(-samples // SHARDS))
    if samples * each_bytes < SHARDS * parse_size(most):
        why = f"a maximum; or {{bytes: {most}}}" if is_kept else "a maximum"
        return ConfigKey("shard", {"samples": each}, why)
    if not is_kept:
        return ConfigKey("shard", {"samples": max(1, round(parse_size(most) / each_bytes))}, "a maximum")
    return ConfigKey("shard", {"bytes": most}, "a maximum; or {samples: 10000}")
