"""Slurm's commands: submit through submitit, list what is queued, cancel.

submitit writes the script and calls sbatch; it does not know a job's state without Slurm's accounting, so
squeue is asked instead. Jobs are found by their name, which is unique to a map: an id can be lost between
sbatch and its reader, and is given again when the controller loses its state.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from tasks.core.engines.slurm_job import Plan, enter
from tasks.core.errors import TarmacError, UsageError
from tasks.core.schema.engine import BuildEngine

ANSWER_S = 30
"""A command that takes longer counts as unanswered."""
CANCEL_S = 60
SETTLE_S = 15
SIGNAL_DELAY_S = 90
"""A job is warned this long before its time limit, or at half time if that is later."""


@dataclass(frozen=True)
class Queue:
    """The jobs of one map, by their name."""

    name: str

    def submit(self, plan: Plan, engine: BuildEngine, attempts: Sequence[tuple[int, int]]) -> list[str]:
        """Submit an array with a job for each (share, attempt); their ids, as squeue shows them.

        TarmacError with sbatch's own words when it refuses.
        """
        import submitit

        executor = submitit.SlurmExecutor(plan.logs, max_num_timeout=0)
        executor.update_parameters(**parameters(engine, self.name))
        shares, tries = zip(*attempts, strict=True)
        said = io.StringIO()  # submitit prints what sbatch says as well as raising it
        with _outside_any_job(), contextlib.redirect_stderr(said):
            try:
                jobs = executor.map_array(enter, [str(plan.folder)] * len(shares), shares, tries)
            except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
                words = " ".join(str(error).split()) or "no reason given"
                raise TarmacError(f"engine.build: Slurm does not take the jobs: {words}") from None
        return [str(job.job_id) for job in jobs]

    def look(self) -> Mapping[str, tuple[str, str]] | None:
        """State (such as PENDING) and reason to wait of the map's queued and running jobs, by their ids; None
        when Slurm does not answer."""
        answer = _ask(["squeue", "-h", "-r", *self._mine, "-o", "%i|%T|%r"])
        if answer is None:
            return None
        rows = (line.split("|", 2) for line in answer.splitlines() if line.count("|") >= 2)
        return {job: (state, reason) for job, state, reason in rows}

    def cancel(self, after_s: float) -> None:
        """Give jobs that have done their work `after_s` seconds to end, then cancel what is left and wait
        until it is gone; jobs that Slurm cannot reach end by themselves."""
        start = time.monotonic()
        while self.look() != {} and (waited_s := time.monotonic() - start) < after_s + CANCEL_S:
            if waited_s >= after_s:
                _ask(["scancel", *self._mine])
            time.sleep(0.5)

    @property
    def _mine(self) -> list[str]:
        return ["-u", str(os.getuid()), "-n", self.name]


def require_slurm() -> None:
    """UsageError where jobs cannot be submitted."""
    if find_spec("submitit") is None:
        raise UsageError("engine.build.kind: slurm needs the package submitit; pip install 'tarmac[slurm]'")
    lacks = [name for name in ("sbatch", "squeue", "scancel", "srun") if shutil.which(name) is None]
    if lacks:
        raise UsageError(
            f"engine.build.kind: slurm, but this machine has no {lacks[0]}; start where you submit jobs"
        )


def parameters(engine: BuildEngine, name: str) -> dict[str, Any]:
    """The settings as submitit's parameters.

    srun gets the number of cores as well: since Slurm 22.05 it does not take it from the job. A time of None
    keeps submitit from its own default of five minutes, a wckey of None from its default `submitit`.
    """
    cpus = engine.cpus or engine.workers or 1
    limit_s = engine.time
    return {
        "job_name": name,
        "account": engine.account,
        "partition": engine.partition,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": cpus,
        "srun_args": [f"--cpus-per-task={cpus}"],
        "mem": None if engine.memory is None else f"{math.ceil(engine.memory / 2**20)}M",
        "time": None if limit_s is None else math.ceil(limit_s / 60),
        "signal_delay_s": SIGNAL_DELAY_S if limit_s is None else min(SIGNAL_DELAY_S, limit_s // 2),
        "setup": [*(engine.setup or []), "export PYTHONSAFEPATH=1"],
        "additional_parameters": engine.extra or {},
        "stderr_to_stdout": True,
        "wckey": None,
    }


def ending(job: str) -> str:
    """Slurm's final state of a job, such as TIMEOUT or OUT_OF_MEMORY; empty when it has forgotten the job."""
    answer = _ask(["scontrol", "show", "job", "-o", job]) or ""
    found = re.search(r"\bJobState=(\w+)", answer)
    return found.group(1) if found else ""


def _ask(command: list[str]) -> str | None:
    settings = ("SQUEUE_", "SCANCEL_")  # a user's own, which would change the answer
    env = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, env=env)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


@contextlib.contextmanager
def _outside_any_job() -> Iterator[None]:
    """Hide the job in which this process itself may run: its SLURM_ variables would shape the new jobs."""
    if "SLURM_JOB_ID" not in os.environ:
        yield
        return
    hidden = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if name.startswith("SLURM_") and name not in ("SLURM_CONF", "SLURM_CLUSTERS")
    }
    try:
        yield
    finally:
        os.environ.update(hidden)
