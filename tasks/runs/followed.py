"""What a run follows instead of training: checkpoints of another trainer, which stay where they are.

`followed.json` names the folder, or the one checkpoint. Each checkpoint that the run has taken gets its own
folder, `checkpoints/step_N`, with `origin.json`: the path, and size and time of each file of weights. Weights
are not copied, as a large model would fill the disk; the price is that one which its trainer removes or
replaces is lost to an evaluation that has not read it yet.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.core.errors import DataError, first_line
from tasks.core.files import digest, read_json
from tasks.runs.folder import RunFolder

ORIGIN = "origin.json"
Unit = Literal["step", "epoch", ""]
"""What a checkpoint's number counts; empty where its name has none."""
Stamps = dict[str, tuple[int, int]]
"""Size in bytes and time of the last change in nanoseconds, by the file's path in a checkpoint's folder; the
name `.` stands for a checkpoint that is a file itself."""


class Followed(BaseModel):
    """The content of `followed.json`: an absolute path, and the number of the last checkpoint to wait for."""

    model_config = ConfigDict(frozen=True)

    path: Path
    is_folder: bool
    """Whether checkpoints appear in it; False where it is one itself."""
    until_step: int | None = None


class Origin(BaseModel):
    """The content of `origin.json`: a checkpoint of another trainer."""

    model_config = ConfigDict(frozen=True)

    path: Path
    unit: Unit
    files: Stamps
    unusable: str = ""
    """Why it cannot be evaluated, such as a file that is torn; empty where it can."""

    @property
    def digest(self) -> str:
        """The digest of its place and its files' sizes and times, which stands for its content."""
        return digest([str(self.path), self.files])

    def is_removed(self) -> bool:
        """Whether its files are gone, as those are that their trainer keeps for a while only."""
        try:
            return not stamps_of(self.path, list(self.files))
        except FileNotFoundError:
            return True
        except OSError:  # such as a file system that does not answer, which may come back
            return False

    def lack(self) -> str:
        """Return why its weights are not to be read any more; empty where they are as they were when the run
        took it."""
        try:
            now = stamps_of(self.path, list(self.files))
        except FileNotFoundError:
            return f"{self.path} was removed"
        except OSError as error:
            return f"{self.path} cannot be read: {error.strerror}"
        return "" if now == self.files else f"{self.path} was written again"


class FollowingNews(BaseModel):
    """The content of `following.json`, by which the agent reports on the folder that it follows."""

    model_config = ConfigDict(frozen=True)

    quiet_s: float = 0
    """How long nothing new has come, where that is long; else 0."""
    last: int | None = None
    """The number of the last checkpoint, where the trainer's record or the user has named it."""
    left_out: dict[str, str] = {}
    """Why a checkpoint is not evaluated, by its name."""


def stamps_of(path: Path, names: Sequence[str]) -> Stamps:
    """Return size and time of each file of a checkpoint; OSError where one is missing."""
    found = {name: os.stat(path / name) for name in names}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def read_followed(run: RunFolder) -> Followed | None:
    """Return what the run follows; None for a run that trains. DataError for a damaged file."""
    if not run.followed.exists():
        return None
    try:
        return Followed.model_validate(read_json(run.followed))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{run.followed}: is damaged ({first_line(error)}); start it again") from None


def read_origin(checkpoint: Path) -> Origin | None:
    """Return where the checkpoint in a run's folder comes from; None for one that the run has saved, and for
    a damaged file."""
    try:
        return Origin.model_validate(read_json(checkpoint / ORIGIN))
    except (OSError, ValueError, ValidationError):
        return None


def origins_of(run: RunFolder) -> dict[int, Origin]:
    """Return the origin of each checkpoint that a run has taken, by its step."""
    named = ((path.name.removeprefix("step_"), path) for path in run.checkpoints.glob("step_*"))
    found = {int(number): read_origin(path) for number, path in named if number.isdecimal()}
    return {step: origin for step, origin in sorted(found.items()) if origin is not None}


def read_news(run: RunFolder) -> FollowingNews:
    """Return the agent's last report on the followed folder; an empty one before the first."""
    try:
        return FollowingNews.model_validate(read_json(run.following))
    except (OSError, ValueError, ValidationError):
        return FollowingNews()
