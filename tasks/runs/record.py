"""`run.json`: the identity of a run, its state and the reason, and every attempt at it.

It is written by whoever holds the run's lease, whole and by rename, and read by everybody.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.core.engines.slurm_queue import SlurmJob
from tasks.core.errors import DataError, first_line
from tasks.core.files import read_json, write_json
from tasks.core.lock import Holder
from tasks.core.process import Identity
from tasks.runs.folder import RunFolder
from tasks.runs.identity import DataRef

State = Literal["planned", "queued", "running", "stalled", "succeeded", "failed", "cancelled"]
OVER: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})
"""States in which nothing trains."""
ASIDE = "aside"
"""The outcome of an attempt that waited for evaluations and made room for them; the next takes its place."""
UNDER_WAY: frozenset[State] = frozenset({"queued", "running", "stalled"})
"""States in which an agent must be alive."""


class Attempt(BaseModel):
    """One life of the run's agent. `pid` is the agent's; `ended` and `outcome` are None while it lives."""

    model_config = ConfigDict(frozen=True)

    started: float
    ended: float | None = None
    asked: float | None = None
    """When it was asked for: by a person or program, or by the attempt before that queued its job again."""
    host: str
    boot_id: str
    pid: int
    pid_started: float
    pid_ticks: int | None = None
    job: str | None
    slurm: SlurmJob | None = None
    """The same job, where it is one of Slurm's."""
    code_digest: str
    versions: dict[str, str]
    outcome: str | None = None
    signal: str | None = None
    """The signal that made it stop, such as SIGUSR2 at its time limit; None where a person did, or nobody."""
    stopped: str | None = None
    """Why it left before its evaluations were final; None where it did not."""

    def is_of(self, agent: Identity) -> bool:
        """Whether it was this process's attempt."""
        return agent == Identity(
            self.host, self.boot_id, self.pid, self.pid_started, self.pid_ticks, agent.namespace
        )


class RunRecord(BaseModel):
    """The content of `run.json`.

    `job` is the agent's job as `tasks.runs.jobs.Job` writes itself; an agent trains, or only
    evaluates the checkpoints that are there, as `goal` says.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    name: str
    identity: dict[str, Any]
    data: list[DataRef]
    state: State
    reason: str = ""
    attempts: list[Attempt] = []
    job: dict[str, Any] | None = None
    goal: Literal["train", "evaluate"] = "train"
    asked: float | None = None
    """When the newest agent was asked for."""
    started_by: str | None = None
    """Id of the flow run that has started the newest agent; None where no flow run has."""
    stopped_early: bool = False
    """Whether a rule of `evaluate.stop_when` has ended the training, so that nothing is left to train until a
    person resumes it."""
    wandb_id: str | None = None
    """Id of the wandb run: the run's id and a part drawn at random when the folder is made, because runs that
    differ only in name or place have one id. None in an older record, whose wandb run has the run's id."""

    @property
    def trained(self) -> int:
        """Number of the newest attempt that was to train, not only to evaluate; 0 without one."""
        for number, attempt in reversed(list(enumerate(self.attempts, 1))):
            evaluated = attempt.outcome in ("evaluated", ASIDE)
            if not (self.goal == "evaluate" if attempt.outcome is None else evaluated):
                return number
        return 0

    def is_abandoned(self, agent_is_alive: bool) -> bool:
        """Whether it should be under way but nobody works on it: its agent was killed."""
        return self.state in UNDER_WAY and not agent_is_alive

    def has_agent(self, holder: Holder | None) -> bool:
        """Return whether the holder of the run's lease is the agent of the last attempt.

        A starter is not, as its agent has yet to come.
        """
        return holder is not None and bool(self.attempts) and self.attempts[-1].is_of(holder.identity)

    def cancelled(self, reason: str) -> RunRecord:
        """Return the record of a run whose agent was cancelled and did not record that itself."""
        if self.state not in OVER:
            return self.having(state="cancelled", reason=reason, job=None)
        if self.job is not None and self.attempts:  # it was evaluated
            return self.having_last(stopped=reason).having(job=None)
        return self

    def having(self, **changes: Any) -> RunRecord:
        """Return a copy with some fields changed."""
        return self.model_copy(update=changes)

    def having_last(self, **changes: Any) -> RunRecord:
        """Return a copy with some fields of the last attempt changed."""
        *earlier, last = self.attempts
        return self.having(attempts=[*earlier, last.model_copy(update=changes)])


def load_record(run: RunFolder) -> RunRecord:
    """Return the run's record; DataError when it is missing or unreadable."""
    try:
        return RunRecord.model_validate(read_json(run.record))
    except (OSError, ValueError, ValidationError) as error:
        first = first_line(error)
        raise DataError(f"{run.record}: is no run record ({first}); plan the run again") from None


def save_record(run: RunFolder, record: RunRecord) -> None:
    """Replace `run.json`; the caller holds the run's lease."""
    write_json(run.record, record.model_dump(mode="json"))
