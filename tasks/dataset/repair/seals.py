"""What every file of a version was when it was built, as far as a seal proves it.

The version's name seals `manifest.json`, the manifest seals what `shards.parquet` says of the tars, and
`build.json` seals every other file and itself. Whatever no seal proves is not believed, however sound it
looks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tasks.core.errors import DataError
from tasks.core.files import blake3_file
from tasks.dataset.build_info import BuildInfo, FileSeal, read_build_info
from tasks.dataset.layout import BUILD, MANIFEST, SHARDS
from tasks.dataset.manifest import Manifest, content_digest, version_name
from tasks.dataset.repair.workplace import Workplace, is_file
from tasks.dataset.tables import ShardRecord, read_shards


@dataclass(frozen=True)
class Seals:
    """`manifest` is None where it is not proven, `shards` (by name) where nothing proves them. `info` is None
    where build.json is lost, and `lost` then says how."""

    manifest: Manifest | None
    shards: Mapping[str, ShardRecord] | None
    info: BuildInfo | None
    lost: str = ""

    @property
    def files(self) -> Mapping[str, FileSeal]:
        """The seal of each file beside the tars; empty where build.json is lost."""
        return {} if self.info is None else self.info.files


def read_seals(place: Workplace) -> Seals:
    """What is proven in the version's folder; DataError for build.json alone is kept in `lost`."""
    version = place.version
    info, lost = None, ""
    try:
        info = read_build_info(version)
        if place.has_its_name and not _is_of(place.version.name, info):
            info, lost = None, f"{version / BUILD} belongs to another version"
    except DataError as error:
        lost = str(error)
    files = {} if info is None else info.files
    manifest = _manifest(place, files)
    shards = None
    with contextlib.suppress(DataError):
        listed = read_shards(version)
        is_proven = manifest is not None and manifest.digest == content_digest(
            (shard.name, shard.blake3) for shard in listed
        )
        if is_proven or (SHARDS in files and is_sealed(version / SHARDS, files[SHARDS])):
            shards = {shard.name: shard for shard in listed}
    return Seals(manifest, shards, info, lost)


def _is_of(name: str, info: BuildInfo) -> bool:
    """Whether build.json seals the manifest that gives a version this name."""
    return MANIFEST in info.files and info.files[MANIFEST].blake3.startswith(name)


def is_sealed(path: Path, seal: FileSeal) -> bool:
    """Whether the file is what it was when it was built."""
    try:
        return is_file(path) and path.stat().st_size == seal.bytes and blake3_file(path) == seal.blake3
    except OSError:
        return False


def _manifest(place: Workplace, files: Mapping[str, FileSeal]) -> Manifest | None:
    path = place.version / MANIFEST
    try:
        content = path.read_bytes()
        manifest = Manifest.model_validate_json(content)
    except (OSError, ValidationError):
        return None
    if place.has_its_name:
        return manifest if version_name(content) == place.version.name else None
    return manifest if MANIFEST in files and is_sealed(path, files[MANIFEST]) else None
