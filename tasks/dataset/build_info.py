"""`build.json`: what of a version depends on time and place, and the seal of its files beside the tars.

`shards.parquet` seals the tars, the version's name seals the manifest, and this file seals every other file
and itself, so that a file whose digest is right is what was built and needs no other check.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from tasks.core.errors import DataError
from tasks.core.files import blake3_file, digest, write_json
from tasks.dataset.layout import BUILD
from tasks.dataset.manifest import first_problem

_PART = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
FileName = Annotated[str, StringConstraints(pattern=rf"^{_PART}(/{_PART})?$")]
"""A file of the version or of a folder in it: no name leads out of it."""
Blake3 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class FileSeal(BaseModel):
    """What a file was when it was built."""

    model_config = ConfigDict(frozen=True, strict=True)

    bytes: Annotated[int, Field(ge=0)]
    blake3: Blake3


class VersionChanges(BaseModel):
    """How many samples came, went and were replaced since the version `since`."""

    model_config = ConfigDict(frozen=True)

    since: str
    gained: int
    lost: int
    replaced: int
    rekeyed: int


class BuildInfo(BaseModel):
    """The whole file.

    `inputs_digest` says whether there is anything to do, `unread` how many samples are to be tried again at
    the next build. `name`, `dataset` (the config block), `cut` (keys of addresses that are kept only in
    part), `filtered`, `passed_over` and `converter` are what a repair needs.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    dataset: dict[str, Any]
    cut: list[str]
    inputs_digest: str
    unread: int
    filtered: int
    passed_over: dict[str, int] = {}
    private: bool
    built: float
    host: str
    engine: dict[str, Any]
    python: str
    versions: dict[str, str | None]
    converter: int
    output: str
    changes: VersionChanges | None = None
    """None of a first version, and of one that an earlier Tarmac built."""
    files: dict[FileName, FileSeal]
    digest: str
    """BLAKE3 of all the rest: nothing else seals this file."""


def read_build_info(version: Path) -> BuildInfo:
    """The version's build.json; DataError when it is missing, torn, or not what was written."""
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
    """The file from its bytes; ValueError, worded as what the file `is`, when it is torn or its own seal is
    wrong."""
    try:
        info = BuildInfo.model_validate_json(content)
    except ValidationError as error:
        raise ValueError(f"is torn or newer than this program: {first_problem(error)}") from None
    if info.digest != _seal(info.model_dump(mode="json", exclude_unset=True)):
        raise ValueError("is damaged: its own checksum is wrong")
    return info


def write_build_info(version: Path, facts: Mapping[str, Any]) -> BuildInfo:
    """Seal every file of a version's folder and write build.json of `facts`, which are BuildInfo's fields but
    `files` and `digest`. Everything else of the version is there by now."""
    content = {**facts, "files": seal_files(version), "digest": ""}
    block = BuildInfo.model_validate(content).model_dump(mode="json")
    info = BuildInfo.model_validate({**block, "digest": _seal(block)})
    write_json(version / BUILD, info.model_dump(mode="json"))
    return info


def seal_files(version: Path) -> dict[str, FileSeal]:
    """The seal of each file beside the tars, by its name relative to the version's folder."""
    return {
        name: FileSeal(bytes=(version / name).stat().st_size, blake3=blake3_file(version / name))
        for name in names_beside_tars(version)
    }


def names_beside_tars(version: Path) -> list[str]:
    """The version's files but its tars and build.json, relative to its folder, in order."""
    found = (path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file())
    return sorted(name for name in found if not name.endswith(".tar") and name != BUILD)


def _seal(block: Mapping[str, Any]) -> str:
    return digest({name: value for name, value in block.items() if name != "digest"})
