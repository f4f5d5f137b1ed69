"""Jobs of Slurm: submitted through submitit, looked for in squeue, cancelled and requeued.

submitit writes the script and calls sbatch; it does not know a job's state without Slurm's accounting, so
squeue is used instead. Jobs are found by their name, which is unique to a map or to a single job: an id can
be lost between sbatch and its reader, and is reused when the controller loses its state. A Slurm that does
not answer changes nothing: what it said last stands, and it is asked again after pauses that grow.
"""

from __future__ import annotations

import contextlib
import io
import logging
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

from tasks.core.engines.slurm_reasons import LAUNCH_FAILED, in_words, is_about_nodes, never_starts
from tasks.core.errors import TarmacError, UsageError
from tasks.core.process import HOME, USERS
from tasks.core.units import format_duration

if TYPE_CHECKING:
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
"""How long an answer of squeue is reused."""
LONGEST_LOOK_S = 60.0
"""The longest pause before a Slurm that does not answer is asked again."""
SEEN_S = 10.0
"""The last output of a job may take this long to appear after the job has left the queue."""
UNKNOWN_S = 6 * 3600.0
"""How long squeue may go unanswered before a job counts as gone."""
CANCELLED = "CANCELLED"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Queue:
    """The jobs with one name: all jobs of a map, or a single job."""

    name: str

    def submit(
        self,
        calls: Sequence[Callable[[], None]],
        folder: Path,
        engine: BuildEngine | TrainEngine | EvaluateEngine,
        key: str,
        path: str | None = None,
    ) -> list[SlurmJob]:
        """Submit a job for each of `calls`, which are `functools.partial`s of a module's function, with
        `path` first in its PYTHONPATH; several are an array. Their files are in `folder`. Slurm may requeue a
        job whose node is lost.

        A job is one process on the first of its nodes, without srun, which would keep it from submitting jobs
        itself: Python takes the place of the script's shell, and the warning before the time limit reaches
        only it. Raises TarmacError with `key` and sbatch's message if Slurm rejects a job.
        """
        with _executor(folder, _parameters(engine, self.name, path), key) as executor:
            jobs = executor.map_array(_call, calls) if len(calls) > 1 else [executor.submit(*calls)]
        submitted = [SlurmJob(str(job.job_id), self.name, os.getuid()) for job in jobs]
        _watch.expect(submitted)
        return submitted

    def cancel(self, after_s: float = 0.0) -> None:
        """Give finished jobs `after_s` seconds to end, then cancel the remaining ones and wait until they are
        gone; jobs that Slurm cannot reach end by themselves."""
        start = time.monotonic()
        while _ask(["squeue", "-h", *self._mine]) != "" and (
            (waited_s := time.monotonic() - start) < after_s + CANCEL_S
        ):
            if waited_s >= after_s:
                _ask(["scancel", *self._mine])
            time.sleep(0.5)

    def cancel_pending(self) -> None:
        """Cancel the jobs that do not run yet."""
        _ask(["scancel", "--state=PENDING", *self._mine])

    def give_up(self, answer_s: float | None = None) -> None:
        """Cancel all jobs without waiting for the effect."""
        _ask(["scancel", *self._mine], answer_s)

    @property
    def _mine(self) -> list[str]:
        return ["-u", str(os.getuid()), "-n", self.name]


def _call(function: Callable[[], None]) -> None:
    """What each job of an array does."""
    function()


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
        """Whether the job was alive at a look, or submitted from here, within the last SEEN_S."""
        return _watch.was_seen(self)

    @property
    def waits_because(self) -> str | None:
        """Slurm's reason in words if the job waits in the queue, which may be empty; None if it does not."""
        state, reason = _watch.look(self) or ("", "")
        if state != "PENDING":
            return None
        return in_words(reason, unavailable_nodes() if is_about_nodes(reason) else ())

    @property
    def waiting(self) -> str:
        """A line that the job waits in the queue, and why; empty if it does not wait."""
        why = self.waits_because
        if why is None:
            return ""
        return f"waiting in the queue as {self} ({why})" if why else f"waiting in the queue as {self}"

    @property
    def never_starts(self) -> str:
        """Slurm's reason if the job waits and cannot start without a person; otherwise empty."""
        state, reason = _watch.look(self) or ("", "")
        return f"{self} ({in_words(reason)})" if state == "PENDING" and never_starts(reason) else ""

    @property
    def failed_to_launch(self) -> bool:
        """Whether the job is held because a node could not start it."""
        return _watch.look(self) == ("PENDING", LAUNCH_FAILED)

    @property
    def ending(self) -> str:
        """Slurm's final state of the job, such as TIMEOUT; empty if Slurm has forgotten it, also where
        another job has its id."""
        return ending(self.id, self.name)

    def cancel(self, *, if_pending: bool = False) -> None:
        """Cancel the job and wait until it is gone; with `if_pending`, cancel it only if it does not run
        yet."""
        queue = Queue(self.name)
        if if_pending:
            queue.cancel_pending()
        else:
            queue.cancel()
        _watch.forget(self)

    def give_up(self) -> None:
        """Cancel the job without waiting for the effect."""
        Queue(self.name).give_up()

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
    """The last answer of squeue about a user's jobs: name, state and reason by id.

    `asked` is the time of the last query, `answered` of the last answer, `silent_since` of the first query
    without an answer, if there is one. The next query is due `pause_s` after the last.
    """

    asked: float
    answered: float
    jobs: Mapping[str, tuple[str, str, str]]
    silent_since: float | None = None
    pause_s: float = 0.0

    def is_due(self, now: float, first: float) -> bool:
        """Whether to ask again for a job that was first looked for at `first`."""
        if self.silent_since is not None:
            return now - self.asked >= self.pause_s
        return self.asked < first or now - self.asked >= LOOK_S


class _QueueWatch:
    """Keeps the answers of squeue, and the time of the first query for each job: a job that is missing from
    an earlier answer may have been submitted after it."""

    def __init__(self) -> None:
        self._answers: dict[int, _QueueListing] = {}
        self._first: dict[SlurmJob, float] = {}
        self._seen: dict[SlurmJob, float] = {}

    def look(self, job: SlurmJob) -> tuple[str, str] | None:
        """Return state and reason; UNKNOWN if squeue has not answered yet, None for a job that is gone."""
        now = time.monotonic()
        first = self._first.setdefault(job, now)
        answer = self._answer(job.user, first)
        if now - max(answer.answered, first) > UNKNOWN_S:
            return None
        if answer.answered < first:
            return "UNKNOWN", ""
        name, state, reason = answer.jobs.get(job.id, ("", "", ""))
        if name != job.name:
            return None
        self._seen[job] = now
        return state, reason

    def silence_s(self, user: int, age_s: float) -> float:
        """Return for how long squeue has not answered; 0 where it does, or did within the last `age_s`."""
        now = time.monotonic()
        answer = self._answers.get(user)
        if answer is None or answer.silent_since is not None or now - answer.answered >= age_s:
            answer = self._answer(user, -math.inf)
        return 0.0 if answer.silent_since is None else max(time.monotonic() - answer.silent_since, 0.1)

    def was_seen(self, job: SlurmJob) -> bool:
        return time.monotonic() - self._seen.get(job, -math.inf) < SEEN_S

    def expect(self, jobs: Sequence[SlurmJob]) -> None:
        """Count jobs as seen that were submitted now."""
        self._seen |= dict.fromkeys(jobs, time.monotonic())

    def forget(self, job: SlurmJob) -> None:
        self._seen.pop(job, None)
        self._answers.pop(job.user, None)

    def _answer(self, user: int, first: float) -> _QueueListing:
        answer = self._answers.get(user)
        if answer is None or answer.is_due(time.monotonic(), first):
            answer = self._answers[user] = self._asked(user, answer)
        return answer

    @staticmethod
    def _asked(user: int, before: _QueueListing | None) -> _QueueListing:
        now = time.monotonic()
        text = _ask(["squeue", "-h", "-r", "-u", str(user), "-o", "%i|%j|%T|%r"])
        before = before or _QueueListing(now, -math.inf, {})
        if text is None:
            if before.silent_since is None:
                logger.info("Slurm does not answer; it is asked again, at least once a minute")
            since = now if before.silent_since is None else before.silent_since
            pause_s = min(max(2 * before.pause_s, LOOK_S), LONGEST_LOOK_S)
            return replace(before, asked=time.monotonic(), silent_since=since, pause_s=pause_s)
        if before.silent_since is not None:
            logger.info("Slurm answers again, after %s", format_duration(now - before.silent_since))
        rows = (line.split("|", 3) for line in text.splitlines() if line.count("|") >= 3)
        return _QueueListing(now, now, {job: (name, state, reason) for job, name, state, reason in rows})


_watch = _QueueWatch()


def silence_s(age_s: float = 0.0) -> float:
    """Return for how long Slurm has not answered this process; 0 where it does, or did within the last
    `age_s`, and on a machine that has no Slurm."""
    return 0.0 if shutil.which("squeue") is None else _watch.silence_s(os.getuid(), age_s)


def silence(age_s: float = 0.0) -> str:
    """Return that Slurm does not answer, and for how many minutes; empty where `silence_s` is 0."""
    silent_s = silence_s(age_s)
    if silent_s < 60:
        return "Slurm does not answer" if silent_s else ""
    return f"Slurm has not answered for {int(silent_s // 60)} min"


def unavailable_nodes() -> list[str]:
    """Return each node that takes no jobs, and why, such as `n2 is drained (bad disk)`."""
    states = "down,drain,drained,draining,fail,maint,no_respond"
    answer = _ask(["sinfo", "-h", "-N", "-t", states, "-o", "%N|%T|%E"]) or ""
    rows = sorted({line for line in answer.splitlines() if line.count("|") >= 2})
    nodes = (row.split("|", 2) for row in rows)
    return [
        f"{name} is {state.rstrip('*')}{'' if why == 'none' else f' ({why})'}" for name, state, why in nodes
    ]


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
def _executor(folder: Path, settings: Mapping[str, Any], key: str) -> Iterator[Any]:
    """Yield submitit's executor with these settings; raises TarmacError with sbatch's message."""
    import submitit

    python = f"exec {shlex.quote(sys.executable)}"
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


def _parameters(engine: SlurmDefaults, name: str, path: str | None) -> dict[str, Any]:
    """Return the settings as submitit's parameters.

    A time of None keeps submitit from its own default of five minutes, a wckey of None from its default
    `submitit`. The script ignores the warning signal until Python handles it: Slurm may send it a minute
    early, which would end a job with a short time limit while Python still imports.
    """
    limit_s, gpus = engine.time, getattr(engine, "gpus", None)
    delay_s = SIGNAL_DELAY_S if limit_s is None else min(SIGNAL_DELAY_S, limit_s // 2)
    first = shlex.quote(os.pathsep.join(filter(None, (path, HOME))))
    return {
        "job_name": name,
        "account": engine.account,
        "partition": engine.partition,
        "nodes": getattr(engine, "nodes", None) or 1,
        "ntasks_per_node": 1,
        "cpus_per_task": engine.cpus,
        "gres": None if gpus is None else f"gpu:{gpus}",
        "mem": None if engine.memory is None else f"{math.ceil(engine.memory / 2**20)}M",
        "time": None if limit_s is None else math.ceil(limit_s / 60),
        "setup": [
            "trap '' USR2",
            f'export PYTHONPATH="${{{USERS}PYTHONPATH-$PYTHONPATH}}"',
            *(engine.setup or []),
            f'export {USERS}PYTHONPATH="$PYTHONPATH" {USERS}PYTHONSAFEPATH= PYTHONSAFEPATH=1',
            f"export PYTHONPATH={first}${{PYTHONPATH:+:$PYTHONPATH}}",
        ],
        "additional_parameters": {"requeue": True, **(engine.extra or {}), "signal": f"B:USR2@{delay_s}"},
        "use_srun": False,
        "stderr_to_stdout": True,
        "wckey": None,
    }


def ending(job: str, name: str | None = None) -> str:
    """Return Slurm's final state of a job, such as TIMEOUT or OUT_OF_MEMORY; empty if Slurm has forgotten it,
    or knows another job, not of this `name`, by its id."""
    answer = _ask(["scontrol", "show", "job", "-o", job]) or ""
    fields = dict(re.findall(r"\b(JobName|JobState)=(\S+)", answer))
    return fields.get("JobState", "") if name in (None, fields.get("JobName")) else ""


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
