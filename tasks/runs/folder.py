"""Where everything of a run lies: one property a path, so that no other module spells a file's name.

The folder is the only truth about a run; every process that takes part reads it and may die at any moment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.files import read_json

ARCHIVE = "archive"


@dataclass(frozen=True)
class RunFolder:
    """`runs/<name>-<id>/`. CONTRACTS names the only writer of each file."""

    path: Path

    @property
    def name(self) -> str:
        """The folder's name, `<name>-<id>`."""
        return self.path.name

    @cached_property
    def id(self) -> str:
        """The run's id, 12 hexadecimal digits: as its record has it, because a folder may be renamed."""
        try:
            return str(read_json(self.record)["id"])
        except (OSError, ValueError, LookupError, TypeError):
            return self.path.name.rpartition("-")[2]

    @property
    def handle(self) -> str:
        """How a command in this working directory names the run: by its folder's name, or by its path
        elsewhere. The id alone may fit several runs, which differ in name only."""
        is_default = self.path.parent.resolve() == Path("runs").resolve()
        return self.name if is_default else os.path.relpath(self.path)

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def loader(self) -> Path:
        return self.path / "loader.json"

    @property
    def lease(self) -> Path:
        """Held by whoever may write the record: a starter for a moment, then the agent."""
        return self.path / "lease.json"

    @property
    def stop(self) -> Path:
        """The sentinel that ranks obey at their next step; its text is the reason."""
        return self.path / "stop"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def metrics_of(self, rank: int) -> Path:
        """What a rank measured: the first one's are the run's."""
        return self.metrics if rank == 0 else self.path / f"metrics.rank_{rank}.jsonl"

    def meeting(self, number: int) -> Path:
        """Where the ranks of an attempt find each other."""
        return self.attempt(number) / "meeting"

    @property
    def findings(self) -> Path:
        return self.path / "findings.jsonl"

    @property
    def quarantine(self) -> Path:
        """The samples that the run leaves out, as the dataset's quarantine was when it began; see there."""
        return self.path / "quarantine.jsonl"

    def replaced(self, rank: int = 0) -> Path:
        """The bad samples that a rank trained without."""
        return self.path / f"replaced.rank_{rank}.jsonl"

    def all_replaced(self) -> list[Path]:
        """Those that are there, of all ranks."""
        return sorted(self.path.glob("replaced.rank_*.jsonl"))

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def attempts(self) -> Path:
        return self.path / "attempts"

    def attempt(self, number: int) -> Path:
        return self.attempts / str(number)

    def code(self, number: int) -> Path:
        """The copy of the library that the attempt runs from."""
        return self.attempt(number) / "code"

    def exit(self, number: int) -> Path:
        return self.attempt(number) / "exit.json"

    def observation(self, number: int) -> Path:
        """What was seen of the attempt's processes when they last stood still; `tasks.diagnosis` reads it."""
        return self.attempt(number) / "observation.json"

    def logs(self, number: int) -> Path:
        """What the agent, the ranks and the evaluation jobs of one attempt printed."""
        return self.attempt(number) / "logs"

    def rank_log(self, number: int, rank: int = 0) -> Path:
        return self.logs(number) / f"rank_{rank}.log"

    def rank_identity(self, number: int, rank: int = 0) -> Path:
        """Which process the rank of an attempt was, so that a later agent can end it."""
        return self.attempt(number) / f"rank_{rank}.json"

    def phase(self, rank: int = 0) -> Path:
        return self.path / "phases" / f"rank_{rank}.json"

    @property
    def lengths(self) -> Path:
        """How long each sample is, for packing: a file for each dataset."""
        return self.path / "lengths"

    @property
    def workers(self) -> Path:
        """What each loader worker is doing; `tasks.loader.worker_state` reads it."""
        return self.path / "workers"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}"

    @property
    def latest(self) -> Path:
        return self.checkpoints / "latest"

    @property
    def best(self) -> Path:
        return self.checkpoints / "best"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    def evaluation(self, step: int, task: str) -> Path:
        return self.evaluations / f"step_{step}" / f"{task}.json"

    def predictions(self, step: int, task: str) -> Path:
        return self.evaluations / f"step_{step}" / f"{task}.predictions.json"

    def evaluation_files(self, step: int, task: str) -> Path:
        """The folder of what an evaluation leaves beside its result."""
        return self.evaluations / f"step_{step}" / task

    def evaluation_lease(self, step: int, task: str) -> Path:
        """Held by the one job that may write that evaluation's result."""
        return self.evaluations / f"step_{step}" / f".{task}.lease"

    def evaluation_request(self, step: int, task: str) -> Path:
        """Asks the run's agent to do that evaluation again, whatever came of it before."""
        return self.evaluations / f"step_{step}" / f".{task}.again"

    @property
    def eval_results(self) -> Path:
        return self.path / "eval_results"

    def eval_result(self, step: int) -> Path:
        return self.eval_results / f"step_{step}.json"

    @property
    def wandb(self) -> Path:
        return self.path / "wandb"

    @property
    def gathered(self) -> Path:
        """How far the gatherer is, and whether all there was to gather is in the wandb run."""
        return self.wandb / "gathered.json"

    @property
    def gatherer_log(self) -> Path:
        return self.wandb / "gatherer.log"

    @property
    def wandb_core(self) -> Path:
        """Which process writes the wandb files for the gatherer, so that the next one can end it."""
        return self.wandb / "core.json"

    @property
    def gatherer_lease(self) -> Path:
        return self.wandb / "lease.json"


def list_runs(runs: Path) -> list[RunFolder]:
    """Every run under `runs`, by name; archived ones are left out."""
    return [RunFolder(record.parent) for record in sorted(runs.glob("*/run.json"))]


def find(runs: Path, prefix: str) -> RunFolder:
    """The one run whose id or folder name starts with `prefix`, or that lies at the path `prefix`.

    UsageError when there is none, or more than one.
    """
    if not prefix:
        raise UsageError("RUN: is empty; give the start of its id or name: tarmac status lists them")
    if (Path(prefix) / "run.json").is_file():
        return RunFolder(Path(prefix).resolve())
    every = list_runs(runs)
    exact = [run for run in every if prefix in (run.id, run.name)]
    found = exact or [run for run in every if run.id.startswith(prefix) or run.name.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(run.name for run in found or every) or "none yet"
    if found:
        raise UsageError(f"RUN: {prefix!r} fits {len(found)} runs in {runs}: {names}; give more of the name")
    raise UsageError(f"RUN: no run in {runs} starts with {prefix!r}; there are: {names}")
