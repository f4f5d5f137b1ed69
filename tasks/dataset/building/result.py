"""What a build reports of itself; light, because whoever started the build in a child reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.core.units import count, counted


@dataclass(frozen=True)
class BuildResult:
    """What a build did. read = accepted + filtered + rejected; `previous` is the version current before, of
    which `lost` samples are gone and `replaced` ones have other bytes, while `gained` are new. `rekeyed` had
    other keys, made by an earlier Tarmac. `released` samples left the quarantine."""

    version: Path
    digest: str
    read: int
    accepted: int
    filtered: int
    rejected: int
    rejects: Mapping[str, int]
    shards: int
    shards_rewritten: int
    previous: str | None
    gained: int
    lost: int
    replaced: int
    rekeyed: int
    released: int
    up_to_date: bool
    seconds: float

    @property
    def changed(self) -> str:
        """How its samples differ from those of `previous`, in words."""
        return changes_text(self.gained, self.lost, self.replaced, self.rekeyed)


def changes_text(gained: int, lost: int, replaced: int, rekeyed: int = 0) -> str:
    """`1,204 samples gained, 3 lost, 800 replaced`."""
    text = f"{counted(gained, 'sample')} gained, {count(lost)} lost, {count(replaced)} replaced"
    return f"{text}, {count(rekeyed)} with new keys" if rekeyed else text
