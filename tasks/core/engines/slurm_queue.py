"""Slurm's commands: submit through submitit, list queued jobs, cancel and requeue.

submitit writes the script and calls sbatch; it does not know a job's state without Slurm's accounting, so
squeue is used instead. Jobs are found by their name, which is unique to a map or to a single job: an id can
be lost between sbatch and its reader, and is reused when the controller loses its state.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.core.errors import TarmacError, UsageError

if TYPE_CHECKING:
    from tasks.core.engines.slurm_job import MapPlan
    from tasks.core.schema.engine import BuildEngine, EvaluateEngine, SlurmDefaults, TrainEngine

ANSWER_S = 30
"""A command that takes longer counts as unanswered."""
LAST_WORD_S = 3
"""The time limit of a command in a process that is being ended with its starter."""
CANCEL_S = 60
SETTLE_S = 15
FATE_S = 10
"""Time limit for asking why this job is being ended: Slurm kills it KillWait after SIGTERM, 30 s by
default."""
SIGNAL_DELAY_S = 90
"""A job is warned this long before its time limit, or at half time if that is later."""
LOOK_S = 5.0
"""How long an answer of squeue about single jobs is reused."""
SEEN_S = 10.0
"""The last output of a job may take this long to appear after the job has left the queue."""
UNKNOWN_S = 600.0
"""How long squeue may go unanswered before a job counts as gone."""

CANCELLED = "CANCELLED"
NEVER = re.compile(
    r"held|HoldMaxRequeue|BadConstraints|NeverSatisfied|Invalid(Account|QOS)|NotAllowed|Partition\w+Limit",
    re.IGNORECASE,
)
"""Reasons of squeue for a job that waits until a person intervenes."""
UNWARNED = """sh -c 'trap "" USR2; exec "$@"' sh"""
"""Starts a program that ignores the warning signal until the program handles it: Slurm may send it a minute
early, which would end a job with a short time limit while Python still imports."""


@dataclass(frozen=True)
class Queue:
    """The jobs with one name: all jobs of a map, or a single job."""

    name: str

    def submit(self, plan: MapPlan, engine: BuildEngine, attempts: Sequence[tuple[int, int]]) -> list[str]:
        """Submit an array with a job for each (share, attempt) and return their ids, as squeue shows them.

        Raises TarmacError with sbatch's message if sbatch rejects it.
        """
        from tasks.core.engines.slurm_job import enter

        cpus = engine.cpus or engine.workers or 1
        settings = {
            **parameters(engine, self.name),
            "cpus_per_task": cpus,
            "srun_args": [f"--cpus-per-task={cpus}"],
        }
        shares, tries = zip(*attempts, strict=True)
        python = f"{UNWARNED} {shlex.quote(sys.executable)}"
        with _executor(plan.logs, settings, python, "engine.build") as executor:
            jobs = executor.map_array(enter, [plan] * len(shares), shares, tries)
        return [str(job.job_id) for job in jobs]

    def submit_one(
        self,
        function: Callable[[], None],
        folder: Path,
        engine: TrainEngine | EvaluateEngine,
        key: str,
        path: str | None = None,
    ) -> SlurmJob:
        """Submit a job that calls `function`, a `functools.partial` of a module's function, with `path` first
        in its PYTHONPATH; its files are in `folder`. Slurm may requeue it after its node is lost.

        The job is one process on the first of its nodes, without srun, which would keep it from submitting
        jobs itself: Python takes the place of the script's shell, and the warning before the time limit
        reaches only it. Raises TarmacError with `key` and sbatch's message if Slurm rejects the job.
        """
        settings = parameters(engine, self.name)
        paths = [f"export PYTHONPATH={shlex.quote(path)}${{PYTHONPATH:+:$PYTHONPATH}}"] if path else []
        settings |= {
            "use_srun": False,
            "nodes": getattr(engine, "nodes", None) or 1,
            "gres": None if engine.gpus is None else f"gpu:{engine.gpus}",
            "setup": ["trap '' USR2", *settings["setup"], *paths],
            "additional_parameters": {
                "requeue": True,
                **settings["additional_parameters"],
                "signal": f"B:USR2@{settings['signal_delay_s']}",
            },
        }
        with _executor(folder, settings, f"exec {shlex.quote(sys.executable)}", key) as executor:
            job = executor.submit(function)
        return SlurmJob(str(job.job_id), self.name, os.getuid())

    def look(self) -> Mapping[str, tuple[str, str]] | None:
        """Return the state (such as PENDING) and the reason for waiting of all queued and running jobs, by
        id; None if Slurm does not answer."""
        answer = _ask(["squeue", "-h", "-r", *self._mine, "-o", "%i|%T|%r"])
        if answer is None:
            return None
        rows = (line.split("|", 2) for line in answer.splitlines() if line.count("|") >= 2)
        return {job: (state, reason) for job, state, reason in rows}

    def cancel(self, after_s: float) -> None:
        """Give finished jobs `after_s` seconds to end, then cancel the remaining ones and wait until they are
        gone; jobs that Slurm cannot reach end by themselves."""
        start = time.monotonic()
        while self.look() != {} and (waited_s := time.monotonic() - start) < after_s + CANCEL_S:
            if waited_s >= after_s:
                _ask(["scancel", *self._mine])
            time.sleep(0.5)

    def give_up(self) -> None:
        """Cancel all jobs without waiting for the effect, because this process is ending."""
        _ask(["scancel", *self._mine], LAST_WORD_S)

    @property
    def _mine(self) -> list[str]:
        return ["-u", str(os.getuid()), "-n", self.name]


@dataclass(frozen=True)
class SlurmJob:
    """One job, identified by id and name: ids are reused when the controller loses its state, names never.

    All queries are answered from one squeue call for all jobs of a `user`, at most one every LOOK_S.
    """

    id: str
    name: str
    user: int

    def __str__(self) -> str:
        return f"Slurm job {self.id}"

    def is_alive(self) -> bool:
        """Whether Slurm has the job: it waits, runs, is being ended, or is being requeued. A job counts as
        gone if Slurm has not answered for UNKNOWN_S."""
        return _watch.look(self) is not None

    def was_just_alive(self) -> bool:
        """Whether the job was alive at a look within the last SEEN_S."""
        return _watch.was_seen(self)

    @property
    def waiting(self) -> str:
        """A line that the job waits in the queue, with Slurm's reason; empty if it does not wait."""
        state, reason = _watch.look(self) or ("", "")
        if state == "UNKNOWN":
            return f"{self}: squeue does not answer"
        why = f" ({reason})" if reason != "None" else ""
        return f"waiting in the queue as {self}{why}" if state == "PENDING" else ""

    @property
    def never_starts(self) -> str:
        """Slurm's reason if the job waits and cannot start without a person; otherwise empty."""
        state, reason = _watch.look(self) or ("", "")
        return f"{self} ({reason})" if state == "PENDING" and NEVER.search(reason) else ""

    def cancel(self, *, if_pending: bool = False) -> None:
        """Cancel the job and wait until it is gone; with `if_pending`, cancel it only if it does not run
        yet."""
        queue = Queue(self.name)
        if if_pending:
            _ask(["scancel", "--state=PENDING", *queue._mine])
        else:
            queue.cancel(after_s=0.0)
        _watch.forget(self)

    def give_up(self) -> None:
        """Cancel the job without waiting for the effect."""
        _ask(["scancel", *Queue(self.name)._mine])

    def leave_out(self, nodes: Sequence[str]) -> None:
        """Have Slurm start the job on other nodes from its next start on."""
        _ask(["scontrol", "update", f"JobId={self.id}", f"ExcNodeList={','.join(nodes)}"])

    def begin_now(self) -> None:
        """Drop the start time with which the job was submitted, so that it may start now."""
        _ask(["scontrol", "update", f"JobId={self.id}", "StartTime=now"])

    def requeue(self) -> str:
        """Requeue the job, which ends it if it runs. Return Slurm's message if Slurm rejects this, else an
        empty text."""
        command = ["scontrol", "requeue", self.id]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CANCEL_S)
        except subprocess.TimeoutExpired:
            return f"scontrol did not answer within {CANCEL_S} s"
        return (done.stderr or done.stdout).strip() or "no reason given" if done.returncode else ""


@dataclass(frozen=True)
class _QueueListing:
    """The last answer of squeue about a user's jobs: name, state and reason by id. `asked` is the time of the
    last query, `answered` of the last answer."""

    asked: float
    answered: float
    jobs: Mapping[str, tuple[str, str, str]]


class _QueueWatch:
    """Keeps the answers of squeue, and the time of the first query for each job: a job that is missing from
    an earlier answer may have been submitted after it."""

    def __init__(self) -> None:
        self._answers: dict[int, _QueueListing] = {}
        self._first: dict[SlurmJob, float] = {}
        self._seen: dict[SlurmJob, float] = {}

    def look(self, job: SlurmJob) -> tuple[str, str] | None:
        """Return state and reason; UNKNOWN if squeue does not answer, None for a job that is gone."""
        now = time.monotonic()
        first = self._first.setdefault(job, now)
        answer = self._answers.get(job.user)
        if answer is None or answer.asked < first or now - answer.asked >= LOOK_S:
            answer = self._answers[job.user] = self._asked(job.user, answer)
        if now - max(answer.answered, first) > UNKNOWN_S:
            return None
        if answer.answered < first:
            return "UNKNOWN", ""
        name, state, reason = answer.jobs.get(job.id, ("", "", ""))
        if name != job.name:
            return None
        self._seen[job] = now
        return state, reason

    def was_seen(self, job: SlurmJob) -> bool:
        return time.monotonic() - self._seen.get(job, -math.inf) < SEEN_S

    def forget(self, job: SlurmJob) -> None:
        self._seen.pop(job, None)
        self._answers.pop(job.user, None)

    @staticmethod
    def _asked(user: int, before: _QueueListing | None) -> _QueueListing:
        now = time.monotonic()
        text = _ask(["squeue", "-h", "-r", "-u", str(user), "-o", "%i|%j|%T|%r"])
        if text is None:
            if before is None:
                return _QueueListing(now, -math.inf, {})
            return replace(before, asked=now)
        rows = (line.split("|", 3) for line in text.splitlines() if line.count("|") >= 3)
        return _QueueListing(now, now, {job: (name, state, reason) for job, name, state, reason in rows})


_watch = _QueueWatch()


def own_job() -> SlurmJob | None:
    """Return the Slurm job that submitit has started as this process; None outside such a job."""
    if os.environ.get("SUBMITIT_EXECUTOR") != "slurm" or "SLURM_JOB_ID" not in os.environ:
        return None
    return SlurmJob(os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_JOB_NAME", ""), os.getuid())


def other_nodes() -> list[str]:
    """Return the names of the nodes of this process's job without the node that it runs on.

    TarmacError where Slurm does not expand the job's list of nodes.
    """
    listed = os.environ["SLURM_JOB_NODELIST"]
    answer = _ask(["scontrol", "show", "hostnames", listed])
    if not answer:
        raise TarmacError(f"scontrol does not tell which nodes {listed} are; start the run again")
    return [name for name in answer.split() if name != os.environ.get("SLURMD_NODENAME")]


def command_on(node: str, cpus: int | None) -> list[str]:
    """Return the beginning of a command line that runs a program on another node of this process's job, with
    its streams here."""
    cores = [] if cpus is None else [f"--cpus-per-task={cpus}"]
    return [
        *("srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", *cores),
        *("--cpu-bind=none", "--kill-on-bad-exit=0", "--quiet"),
    ]


Fate = Literal["runs", "preempted", "requeued", "ends", "unknown"]
"""What Slurm will do with a job: `preempted` still runs for a grace time; `requeued` starts again
automatically; `ends` does not, as after scancel; `unknown` means that Slurm does not answer."""


def fate_of_own_job() -> Fate:
    """Return what Slurm will do with this process's job after it has sent it a signal.

    A job that is cancelled and a job that is requeued are both COMPLETING, but only the requeued job has its
    count of restarts increased by then; SLURM_RESTART_COUNT is the count at the start of this process.
    """
    answer = _ask(["scontrol", "show", "job", "-o", os.environ["SLURM_JOB_ID"]], FATE_S)
    fields = dict(re.findall(r"\b(JobState|Restarts|PreemptTime)=(\S+)", answer or ""))
    if "JobState" not in fields:
        return "unknown"
    if int(fields.get("Restarts", 0)) > int(os.environ.get("SLURM_RESTART_COUNT", 0)):
        return "requeued"
    if fields["JobState"] != "RUNNING":
        return "ends"
    return "runs" if fields.get("PreemptTime", "None") == "None" else "preempted"


@contextlib.contextmanager
def _executor(folder: Path, settings: Mapping[str, Any], python: str, key: str) -> Iterator[Any]:
    """Yield submitit's executor with these settings; raises TarmacError with sbatch's message."""
    import submitit

    executor = submitit.SlurmExecutor(folder, max_num_timeout=0, python=python)
    executor.update_parameters(**settings)
    printed = io.StringIO()  # submitit prints sbatch's message as well as raising it
    with _outside_any_job(), contextlib.redirect_stderr(printed):
        try:
            yield executor
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError) as error:
            words = " ".join(str(error).split()) or "no reason given"
            raise TarmacError(f"{key}: Slurm does not take the job: {words}") from None


def require_slurm(key: str = "engine.build") -> None:
    """Raise a UsageError that names `key` if jobs cannot be submitted from this machine."""
    if find_spec("submitit") is None:
        raise UsageError(f"{key}.kind: slurm needs the package submitit; pip install 'tarmac[slurm]'")
    lacks = [name for name in ("sbatch", "squeue", "scancel", "srun") if shutil.which(name) is None]
    if lacks:
        here = f"this machine has no {lacks[0]}"
        raise UsageError(f"{key}.kind: slurm, but {here}; start where you submit jobs")


def parameters(engine: SlurmDefaults, name: str) -> dict[str, Any]:
    """Return the settings as submitit's parameters.

    Where srun is used, it also gets the number of cores: since Slurm 22.05 it does not inherit it from the
    job. A time of None keeps submitit from its own default of five minutes, a wckey of None from its default
    `submitit`.
    """
    limit_s = engine.time
    return {
        "job_name": name,
        "account": engine.account,
        "partition": engine.partition,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": engine.cpus,
        "mem": None if engine.memory is None else f"{math.ceil(engine.memory / 2**20)}M",
        "time": None if limit_s is None else math.ceil(limit_s / 60),
        "signal_delay_s": SIGNAL_DELAY_S if limit_s is None else min(SIGNAL_DELAY_S, limit_s // 2),
        "setup": [*(engine.setup or []), "export PYTHONSAFEPATH=1"],
        "additional_parameters": engine.extra or {},
        "stderr_to_stdout": True,
        "wckey": None,
    }


def ending(job: str) -> str:
    """Return Slurm's final state of a job, such as TIMEOUT or OUT_OF_MEMORY; empty if Slurm has forgotten
    it."""
    answer = _ask(["scontrol", "show", "job", "-o", job]) or ""
    found = re.search(r"\bJobState=(\w+)", answer)
    return found.group(1) if found else ""


def _ask(command: list[str], answer_s: float | None = None) -> str | None:
    """Return a command's output; None if it fails or takes longer than `answer_s`, ANSWER_S by default."""
    settings = ("SQUEUE_", "SCANCEL_")  # the user's own settings, which would change the answer
    env = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=answer_s or ANSWER_S, env=env)
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return None
    return done.stdout if done.returncode == 0 else None


@contextlib.contextmanager
def _outside_any_job() -> Iterator[None]:
    """Hide the job in which this process may run: its SLURM_ variables would change the new jobs."""
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
