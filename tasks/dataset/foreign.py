"""Where the tars of a version lie that others wrote, and that `tasks.dataset.indexing` made an index of."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.core.errors import DataError
from tasks.core.remote.remote_shards import RemoteShard
from tasks.dataset.layout import FOREIGN, shard_name
from tasks.dataset.manifest import first_problem


class ForeignSplit(BaseModel):
    """The tars of a split, in order: paths of this machine, or addresses with size, stamp and BLAKE3.

    `is_plain` where every sample is laid out as in our own tars, which are parsed faster.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    is_plain: bool
    paths: tuple[str, ...] = ()
    remote: tuple[RemoteShard, ...] = ()


def foreign_split(version: Path, split: str) -> ForeignSplit | None:
    """Where the tars of a split lie, if others wrote them; DataError for a damaged file."""
    found = _read(version)
    return None if found is None else found.splits.get(split)


def _read(version: Path) -> Foreign | None:
    path = version / FOREIGN
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return Foreign.model_validate_json(content)
    except ValidationError as error:
        problem = first_problem(error)
        raise DataError(f"{path} is damaged ({problem}); run `tarmac index` again") from None


class Foreign(BaseModel):
    """The file FOREIGN."""

    splits: dict[str, ForeignSplit]


def addresses(version: Path) -> dict[str, str]:
    """Where each remote tar of a version lies, by its name; DataError for a damaged file."""
    found = _read(version)
    return {
        shard_name(split, number): shard.url
        for split, its in (found.splits.items() if found else ())
        for number, shard in enumerate(its.remote)
    }
