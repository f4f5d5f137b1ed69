"""A submitted job as everybody can see it, without submitit.

submitit's own view of a job is lost with the process that submitted it. So a local job is known by the
identity of its controller, a process that lives exactly as long as the job, and one of Slurm's by its id and
name in the queue.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.core.engines.slurm_queue import SlurmJob
from tasks.core.lock import holder_of
from tasks.core.process import Identity, kill_tree
from tasks.runs import record
from tasks.runs.folder import RunFolder


@dataclass(frozen=True)
class Job:
    """A submitted job: submitit's id, what it lives by, its submission folder and its log."""

    id: str
    identity: Identity | SlurmJob
    folder: Path

    @property
    def log(self) -> Path:
        """What the job printed, both streams."""
        return self.folder / f"{self.id}_0_log.out"

    @property
    def said_goodbye(self) -> bool:
        """Whether the job came to an end of its own, by success or by an error, and was not killed."""
        return (self.folder / f"{self.id}_0_result.pkl").exists()

    @property
    def slurm(self) -> SlurmJob | None:
        """The job in Slurm's queue; None of a local one."""
        return self.identity if isinstance(self.identity, SlurmJob) else None

    def is_alive(self) -> bool:
        """Whether it waits or runs. A Slurm job that has left the queue without a goodbye counts as alive for
        a moment, until the last that it wrote is sure to be seen."""
        alive = self.identity.is_alive()
        return alive or (self.slurm is not None and self.slurm.was_just_alive() and not self.said_goodbye)

    def end(self) -> None:
        """End it, by force after a second; one of Slurm's is only cancelled."""
        if isinstance(self.identity, SlurmJob):
            self.identity.give_up()
        else:
            kill_tree(self.identity, grace_s=1.0)

    def to_json(self, home: Path = Path("/")) -> dict[str, Any]:
        """`folder` is given from `home` on, such as the run's folder, which may be moved."""
        folder = self.folder.resolve()
        inside = folder.relative_to(home.resolve()) if folder.is_relative_to(home.resolve()) else folder
        lives_by = (
            {"identity": self.identity.to_json()}
            if isinstance(self.identity, Identity)
            else {"slurm": asdict(self.identity)}
        )
        return {"id": self.id, **lives_by, "folder": str(inside)}

    @classmethod
    def from_json(cls, value: dict[str, Any], home: Path = Path("/")) -> Job:
        slurm = value.get("slurm")
        identity = Identity.from_json(value["identity"]) if slurm is None else SlurmJob(**slurm)
        return cls(value["id"], identity, home / value["folder"])


def agent_is_alive(run: RunFolder) -> bool:
    """Whether somebody holds the run's lease, or its submitted agent is still on its way to it."""
    holder = holder_of(run.lease)
    if holder is not None and holder.is_alive():
        return True
    job = record.load_record(run).job
    return job is not None and Job.from_json(job).is_alive()
