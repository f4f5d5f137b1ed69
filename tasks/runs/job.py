"""A submitted job as everybody can see it, without submitit.

submitit's own view of a job is lost with the process that submitted it, so a job is told by the identity of
its controller, a process that lives exactly as long as the job.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.process import Identity


@dataclass(frozen=True)
class Job:
    """A submitted job: submitit's id, its controller's identity, its submission folder and its log."""

    id: str
    identity: Identity
    folder: Path

    @property
    def log(self) -> Path:
        """What the job printed, both streams."""
        return self.folder / f"{self.id}_0_log.out"

    @property
    def said_goodbye(self) -> bool:
        """Whether the job came to an end of its own, by success or by an error, and was not killed."""
        return (self.folder / f"{self.id}_0_result.pkl").exists()

    def is_alive(self) -> bool:
        return self.identity.is_alive()

    def to_json(self, home: Path = Path("/")) -> dict[str, Any]:
        """`folder` is given from `home` on, such as the run's folder, which may be moved."""
        folder = self.folder.resolve()
        inside = folder.relative_to(home.resolve()) if folder.is_relative_to(home.resolve()) else folder
        return {"id": self.id, "identity": self.identity.to_json(), "folder": str(inside)}

    @classmethod
    def from_json(cls, value: dict[str, Any], home: Path = Path("/")) -> Job:
        return cls(value["id"], Identity.from_json(value["identity"]), home / value["folder"])
