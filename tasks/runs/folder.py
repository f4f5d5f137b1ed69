"""The paths of a run: the only place that spells the names of its files.

The folder is the only truth about a run; every process that takes part reads it and may die at any moment.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks.core.errors import UsageError
from tasks.core.files import read_json

ARCHIVE = "archive"


class RunFile:
    """A file or folder of a run, by its path inside the run's folder."""

    def __init__(self, inside: str) -> None:
        self._inside = inside

    def __get__(self, run: RunFolder, owner: type[RunFolder]) -> Path:
        return run.path / self._inside


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
        """The name for this run in a command here: its folder's name, or its path where that lies elsewhere.

        The id alone may fit several runs, which differ in name only.
        """
        return self.name if self.is_here else os.path.relpath(self.path)

    @property
    def is_here(self) -> bool:
        """Whether it lies in the folder where commands here look for runs."""
        return self.path.parent.resolve() == Path("runs").resolve()

    record = RunFile("run.json")
    config = RunFile("config.yaml")
    loader = RunFile("loader.json")
    lease = RunFile("lease.json")
    """Held by whoever may write the record: a starter for a moment, then the agent."""
    stop = RunFile("stop")
    """The sentinel that ranks obey at their next step; its text is the reason."""
    metrics = RunFile("metrics.jsonl")
    findings = RunFile("findings.jsonl")
    sanity = RunFile("sanity.jsonl")
    """What the first rank finds wrong while it trains; the agent copies it to `findings.jsonl`."""
    ledger = RunFile("ledger.jsonl")
    report = RunFile("report.html")
    quarantine = RunFile("quarantine.jsonl")
    """The samples that the run leaves out: a copy of the dataset's quarantine from when the run began."""
    lengths = RunFile("lengths")
    """How long each sample is, for packing: a file for each dataset."""
    workers = RunFile("workers")
    """What each loader worker is doing; `tasks.loader.worker_state` reads it."""

    dismissed = RunFile("dismissed.json")
    """After how many attempts a person has dismissed what the run needed."""
    footprint = RunFile("footprint.json")
    """What a rank takes of its GPU, and computes in a step."""

    def phase(self, rank: int = 0) -> Path:
        return self.path / "phases" / f"rank_{rank}.json"

    def replaced(self, rank: int = 0) -> Path:
        """The bad samples that a rank trained without."""
        return self.path / f"replaced.rank_{rank}.jsonl"

    def all_replaced(self) -> list[Path]:
        """The same files of all ranks, as far as they exist."""
        return sorted(self.path.glob("replaced.rank_*.jsonl"))

    attempts = RunFile("attempts")

    def attempt(self, number: int) -> Path:
        return self.attempts / str(number)

    def meeting(self, number: int) -> Path:
        """The folder in which the ranks of an attempt find each other."""
        return self.attempt(number) / "meeting"

    def code(self, number: int) -> Path:
        """The copy of the library that the attempt runs from."""
        return self.attempt(number) / "code"

    def exit(self, number: int) -> Path:
        return self.attempt(number) / "exit.json"

    def lives(self, number: int) -> Path:
        """What each start of the attempt's ranks did with its time; `tasks.runs.lives` reads it."""
        return self.attempt(number) / "lives.jsonl"

    def observation(self, number: int) -> Path:
        """The observation of the attempt's processes when they last stood still; `tasks.diagnosis`
        reads it."""
        return self.attempt(number) / "observation.json"

    def logs(self, number: int) -> Path:
        """What the agent, the ranks and the evaluation jobs of one attempt printed."""
        return self.attempt(number) / "logs"

    def rank_log(self, number: int, rank: int = 0) -> Path:
        return self.logs(number) / f"rank_{rank}.log"

    def rank_identity(self, number: int, rank: int = 0) -> Path:
        """The identity of the process of an attempt's rank, so that a later agent can end it."""
        return self.attempt(number) / f"rank_{rank}.json"

    checkpoints = RunFile("checkpoints")
    latest = RunFile("checkpoints/latest")
    best = RunFile("checkpoints/best")

    def best_by(self, metric: str) -> Path:
        """The link to the best checkpoint by one of several metrics."""
        return self.checkpoints / f"best_{re.sub('[^A-Za-z0-9@._-]', '_', metric)}"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:08d}"

    evaluations = RunFile("evaluations")
    eval_results = RunFile("eval_results")

    def evaluation(self, step: int, task: str) -> Path:
        return self._of_evaluation(step, f"{task}.json")

    def predictions(self, step: int, task: str) -> Path:
        return self._of_evaluation(step, f"{task}.predictions.json")

    def judged_samples(self, step: int, task: str) -> Path:
        """What each sample contributed to the result; `tasks.evaluation.samples` reads it."""
        return self._of_evaluation(step, f"{task}.samples.parquet")

    def evaluation_files(self, step: int, task: str) -> Path:
        """The folder of further files of an evaluation, beside its result."""
        return self._of_evaluation(step, task)

    def evaluation_journal(self, step: int, task: str) -> Path:
        """What an evaluation has computed so far; `tasks.evaluation.journal` reads it."""
        return self._of_evaluation(step, f".{task}.journal")

    def evaluation_lease(self, step: int, task: str) -> Path:
        """Held by the one job that may write that evaluation's result."""
        return self._of_evaluation(step, f".{task}.lease")

    def evaluation_request(self, step: int, task: str) -> Path:
        """Asks the run's agent to do that evaluation again, whatever came of it before."""
        return self._of_evaluation(step, f".{task}.again")

    def _of_evaluation(self, step: int, name: str) -> Path:
        return self.evaluations / f"step_{step}" / name

    def eval_result(self, step: int) -> Path:
        return self.eval_results / f"step_{step}.json"

    tensorboard = RunFile("tensorboard")
    """TensorBoard's event files, a folder for each axis; the gatherer writes them."""
    followed = RunFile("followed.json")
    """The folder or checkpoint of another trainer that the run evaluates instead of training."""
    following = RunFile("following.json")
    """What the agent reports of it."""

    wandb = RunFile("wandb")
    gathered = RunFile("wandb/gathered.json")
    """How far the gatherer is, and whether all there was to gather is in the wandb run."""
    gatherer_log = RunFile("wandb/gatherer.log")
    gatherer_lease = RunFile("wandb/lease.json")
    wandb_core = RunFile("wandb/core.json")
    """The process that writes the wandb files for the gatherer, so that the next one can end it."""


def list_runs(runs: Path) -> list[RunFolder]:
    """Return every run under `runs`, by name, without archived ones and those that are being removed."""
    records = sorted(runs.glob("*/run.json"))
    return [RunFolder(record.parent) for record in records if not record.parent.name.startswith(".")]


def find(runs: Path, prefix: str) -> RunFolder:
    """Return the one run whose id or folder name starts with `prefix`, or that lies at the path `prefix`.

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
