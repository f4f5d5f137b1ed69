"""What a build reports of itself; light, because whoever started the build in a child reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BuildResult:
    """What a build did. read = accepted + filtered + rejected; `previous` is the version current before, of
    which `lost` samples are gone, while `gained` are new. `released` samples left the quarantine."""

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
    released: int
    up_to_date: bool
    seconds: float
