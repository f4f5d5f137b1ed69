"""`build.json`: the facts about a version that depend on time and place, and the seals of the files beside
its tars.

`shards.parquet` seals the tars, the version's name seals the manifest, and this file seals every other file
and itself, so that a file whose digest is right is what was built and needs no other check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.core.errors import DataError
from tasks.core.files import blake3_file, digest, write_json
from tasks.dataset.version.layout import BUILD
from tasks.dataset.version.records import InvalidRecord, parse_record

_PART = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_FILE_NAME = re.compile(rf"{_PART}(/{_PART})?")
"""A file of the version or of a folder in it: no such name leads out of the version."""
_BLAKE3 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class FileSeal:
    """The size and BLAKE3 that a file had when it was built."""

    bytes: int
    blake3: str

    def __post_init__(self) -> None:
        if self.bytes < 0 or not _BLAKE3.fullmatch(self.blake3):
            raise ValueError(f"{self.bytes} bytes and {self.blake3[:100]!r} are no size and BLAKE3")


@dataclass(frozen=True)
class VersionChanges:
    """How many samples were gained, lost and replaced since the version `since`."""

    since: str
    gained: int
    lost: int
    replaced: int
    rekeyed: int


@dataclass(frozen=True, kw_only=True)
class BuildInfo:
    """The content of the file.

    `inputs_digest` shows the next build whether there is anything to do, `unread` is how many samples it
    tries again. A repair needs `name`, `dataset` (the config block), `cut` (the keys of addresses that are
    kept only in part), `filtered`, `passed_over` and `converter`.
    """

    name: str
    dataset: dict[str, Any]
    cut: list[str]
    inputs_digest: str
    unread: int
    filtered: int
    passed_over: dict[str, int] = field(default_factory=dict)
    containers: dict[str, str] = field(default_factory=dict)
    """The stamp of each container of a sequential source, by a digest of its name; empty where an earlier
    Tarmac built the version."""
    private: bool
    built: float
    host: str
    engine: dict[str, Any]
    python: str
    versions: dict[str, str | None]
    converter: int
    output: str
    changes: VersionChanges | None = None
    """None for a first version, and for one that an earlier Tarmac built."""
    unscored: int = 0
    """How many samples had no score that a rule of `filter` is about."""
    files: dict[str, FileSeal]
    digest: str
    """The BLAKE3 of all other fields, because nothing else seals this file."""

    def __post_init__(self) -> None:
        for name in self.files:
            if not _FILE_NAME.fullmatch(name):
                raise ValueError(f"{name[:100]!r} is no file of a version")


def read_build_info(version: Path) -> BuildInfo:
    """Read the version's build.json; DataError when it is missing, torn, or not what was written."""
    path = version / BUILD
    try:
        return parse_build_info(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} {error}") from None


def parse_build_info(content: bytes) -> BuildInfo:
    """Parse the bytes of the file; ValueError when it is torn or its own seal is wrong, with a text that goes
    on from the file's name: `is torn …`."""
    try:
        info = parse_record(BuildInfo, content)
    except InvalidRecord as error:
        raise ValueError(f"is torn or newer than this program: {error}") from None
    if info.digest != _seal(json.loads(content)):
        raise ValueError("is damaged: its own checksum is wrong")
    return info


def write_build_info(version: Path, facts: Mapping[str, Any]) -> BuildInfo:
    """Seal every file of a version's folder and write build.json with `facts`, which are the fields of
    BuildInfo but `files` and `digest`. Call this when all other files of the version are written."""
    files = {name: asdict(seal) for name, seal in seal_files(version).items()}
    block = asdict(parse_record(BuildInfo, json.dumps({**facts, "files": files, "digest": ""}).encode()))
    write_json(version / BUILD, {**block, "digest": _seal(block)})
    return read_build_info(version)


def seal_files(version: Path) -> dict[str, FileSeal]:
    """The seal of each file beside the tars, by its name relative to the version's folder."""
    return {
        name: FileSeal(bytes=(version / name).stat().st_size, blake3=blake3_file(version / name))
        for name in names_beside_tars(version)
    }


def may_be_used(version: Path, name: str) -> bool:
    """Whether a file beside the tars has its seal, or none that could be compared: without checksums of its
    own, a changed byte in it would pass."""
    try:
        seal = read_build_info(version).files.get(name)
        path = version / name
        return seal is None or (path.stat().st_size == seal.bytes and blake3_file(path) == seal.blake3)
    except (DataError, OSError):
        return True  # verify reports that build.json, or the file itself, is lost


def names_beside_tars(version: Path) -> list[str]:
    """The sorted names of the version's files, without its tars and build.json, relative to its folder."""
    found = (path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.endswith(".tar") and name != BUILD)


def _seal(block: Mapping[str, Any]) -> str:
    return digest({name: value for name, value in block.items() if name != "digest"})
