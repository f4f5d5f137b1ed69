"""build.json: what of a version depends on time and place, and the checksums of its files but the tars."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.core.files import blake3_file, digest

BUILD = "build.json"
SEAL = "digest"


def beside_the_tars(version: Path) -> list[str]:
    """The version's files but its tars and build.json, relative to its folder."""
    found = (path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.endswith(".tar") and name != BUILD)


def recorded(version: Path) -> dict[str, Any]:
    """What build.json keeps of each of them: `{"index/val.npy": {"bytes": 944, "sha256": …}}`."""
    return {
        name: {"bytes": (version / name).stat().st_size, "sha256": blake3_file(version / name)}
        for name in beside_the_tars(version)
    }


def sealed(facts: Mapping[str, Any]) -> dict[str, Any]:
    """build.json of these facts: nothing else keeps its checksum, so it keeps its own."""
    facts = {name: value for name, value in facts.items() if name != SEAL}
    return {**facts, SEAL: digest(facts)}


def is_sealed(build: Mapping[str, Any]) -> bool:
    """Whether it still says what was written; ValueError where it holds what no build wrote."""
    return bool(build.get(SEAL) == sealed(build)[SEAL])
