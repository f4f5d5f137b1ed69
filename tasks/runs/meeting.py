"""The folder in which the ranks of one training find each other, and what they leave there for their agent.

A file store, and no port: ports are taken by others between their choice and their use, and the folder tells
what belongs to which attempt. It needs the locks of its file system, as the run's lease does.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "TARMAC_MEETING"


@dataclass(frozen=True)
class Meeting:
    """Of one start of one training."""

    path: Path

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Meeting | None:
        """That which a rank was told of; None of a rank that is alone, or was started by torchrun."""
        path = environment.get(VARIABLE)
        return None if path is None else cls(Path(path))

    def prepare(self) -> None:
        """Make the folder anew: what an earlier start left in it would be taken for this one's."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir(parents=True)

    @property
    def store(self) -> Path:
        """torch.distributed's file, by which the ranks tell each other their addresses."""
        return self.path / "store"

    def environment(self, rank: int, count: int) -> dict[str, str]:
        """What tells one of `count` ranks on this machine who it is, in torchrun's words, and that the others
        are on this machine: by its own name a host is often found at no address at all."""
        number, all_of_them = str(rank), str(count)
        return {
            VARIABLE: str(self.path),
            "RANK": number,
            "LOCAL_RANK": number,
            "WORLD_SIZE": all_of_them,
            "LOCAL_WORLD_SIZE": all_of_them,
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
        }

    def has_failed(self, rank: int) -> None:
        """Leave the rank's number, unless another has failed before: the others fail because of it."""
        with suppress(OSError), self._failed.open("x", encoding="ascii") as file:
            file.write(str(rank))

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first; None where none had the time to say so."""
        try:
            return int(self._failed.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    @property
    def _failed(self) -> Path:
        return self.path / "failed"
