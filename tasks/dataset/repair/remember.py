"""build.json after a repair: it says what is there, and keeps its times, which tell the versions' order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.core.files import write_json
from tasks.dataset.build.staging import redact_config
from tasks.dataset.build_info import sealed
from tasks.dataset.layout import BUILD
from tasks.dataset.repair import install
from tasks.dataset.repair.identity import MANIFEST, Record, read_proven_manifest, state, tables_of
from tasks.dataset.repair.origin import Origin
from tasks.dataset.repair.outcome import Done
from tasks.dataset.repair.place import Place

CONFIGURED = ("name", "dataset", "cut")
"""What a config that is known to be right tells better than a build.json that was changed."""


def forget(place: Place, origin: Origin) -> None:
    """Take a record out of build.json that is not this version's, so that nothing is judged by it."""
    if origin.is_sealed and "files" in origin.build:
        _write(place, {name: value for name, value in origin.build.items() if name != "files"})


def remember(place: Place, origin: Origin, record: Record | None) -> Iterator[Done]:
    """Write build.json again if it is lost or was changed, or does not say what is there; all other tables
    are sound."""
    version = place.version
    manifest = read_proven_manifest(place, record)
    if manifest is None:
        return
    there = [name for name in tables_of(version, manifest.splits) if install.is_file(version / name)]
    files = {name: state(version / name) for name in sorted(there)}
    if files == record and origin.is_sealed:
        return
    facts = origin.build
    if not origin.is_sealed:
        known = {name: value for name, value in facts.items() if name not in CONFIGURED}
        facts = {**_facts(place, origin, manifest.filtered), **known, "filtered": manifest.filtered}
    listed = {name: {"bytes": one.size_bytes, "blake3": one.blake3} for name, one in files.items()}
    _write(place, {**facts, "files": listed})
    yield Done(BUILD, "written again" + ("" if origin.build else "; its times are lost"))


def _write(place: Place, facts: Mapping[str, Any]) -> None:
    """Replace build.json, but not its time."""
    path = place.version / BUILD
    time_ns = _time_ns(place)
    if path.is_dir():
        install.set_aside(place, path, BUILD)
    write_json(path, sealed(facts))
    os.utime(path, ns=(time_ns, time_ns))


def _time_ns(place: Place) -> int:
    """When the version was built."""
    build = place.version / BUILD
    return (build if build.exists() else place.version / MANIFEST).stat().st_mtime_ns


def _facts(place: Place, origin: Origin, filtered: int) -> Mapping[str, Any]:
    """What can still be said where build.json is lost. No build takes the version for up to date."""
    facts: dict[str, Any] = {
        "inputs_digest": "",
        "unread": 0,
        "host": "",
        "engine": {},
        "python": "",
        "converter": 0,
        "filtered": filtered,
        "private": origin.is_private,
        "built": _time_ns(place) / 1e9,
        "versions": {},
        "output": str(place.dataset or place.version),
    }
    if origin.config is not None:
        dataset, cut = redact_config(origin.dataset)
        facts |= {"name": origin.config.name, "dataset": dataset, "cut": cut}
    return facts
