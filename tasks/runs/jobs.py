"""Jobs of a run: submitted through submitit, on this machine or to Slurm, and recognised later without it.

A job outlives whoever submitted it, but submitit's own view of a job is lost with that process. So a local
job is known by the identity of its controller, a process that lives exactly as long as the job, and a Slurm
job by its id and name in the queue.

submitit's local controller shares the session and the streams of the process that submits, so a terminal's
Ctrl-C or hang-up would end it; a short-lived helper in a session of its own submits instead. The job's
process binds its life to the controller's, hence one lives exactly as long as the other. submitit's default
time limit, two minutes, is always replaced by ours. No GPU is visible to a job unless it asks for one; only
where nothing shows which GPUs there are does the job find out by itself.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from tasks.core.engines.slurm_queue import Queue, SlurmJob
from tasks.core.errors import TarmacError
from tasks.core.files import read_json, write_json
from tasks.core.lock import holder_of
from tasks.core.process import Identity, child_environment, kill_tree, signal_at_starters_end
from tasks.runs import record
from tasks.runs.folder import RunFolder
from tasks.runs.gpus import SPARE_GPUS, VISIBLE_GPUS, gpu_environment

if TYPE_CHECKING:
    from tasks.core.schema.engine import EvaluateEngine, TrainEngine

SIGNAL_DELAY_S = 60
"""A job is warned of its time limit this long before it is ended, or at half time if that is later."""
SUBMIT_TIMEOUT_S = 60
UNLIMITED_S = 100 * 365 * 24 * 3600
"""The time limit for a job without one, as submitit requires a limit."""
SUBMITTED = "job.json"
"""The helper's answer, in the folder of the job."""
CONTROLLER = "SUBMITIT_LOCAL_JOB_ID"
HELPER = "import sys; from tasks.runs.jobs import submit_from_helper as submit; submit(sys.argv[1])"
"""Imports this module by name: submitit pickles functions of a `__main__` by value."""


@dataclass(frozen=True)
class Job:
    """A submitted job: submitit's id, the process or Slurm job that it lives by, and its submission
    folder."""

    id: str
    identity: Identity | SlurmJob
    folder: Path

    @property
    def log(self) -> Path:
        """The file of what the job printed, both streams."""
        return self.folder / f"{self.id}_0_log.out"

    @property
    def said_goodbye(self) -> bool:
        """Whether the job ended by itself, by success or by an error, and was not killed."""
        return (self.folder / f"{self.id}_0_result.pkl").exists()

    @property
    def slurm(self) -> SlurmJob | None:
        """The job in Slurm's queue; None for a local one."""
        return self.identity if isinstance(self.identity, SlurmJob) else None

    def is_alive(self) -> bool:
        """Whether it waits or runs.

        A Slurm job that has left the queue without a goodbye counts as alive for a moment, until the last
        file that it wrote is sure to be visible.
        """
        alive = self.identity.is_alive()
        return alive or (self.slurm is not None and self.slurm.was_just_alive() and not self.said_goodbye)

    def end(self) -> None:
        """End it, by force after a second; a Slurm job is only cancelled."""
        if isinstance(self.identity, SlurmJob):
            self.identity.give_up()
        else:
            kill_tree(self.identity, grace_s=1.0)

    def to_json(self, home: Path = Path("/")) -> dict[str, Any]:
        """Return the job for a record; `folder` is relative to `home`, such as a run's folder, which may
        move."""
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


def job_in(run: RunFolder, recorded: dict[str, Any] | None) -> Job | None:
    """Return the job that a record or a ledger entry of the run holds; None where it holds none."""
    return None if recorded is None else Job.from_json(recorded, run.path)


def agent_is_alive(run: RunFolder) -> bool:
    """Whether somebody holds the run's lease, or its submitted agent is still on its way to it."""
    holder = holder_of(run.lease)
    if holder is not None and holder.is_alive():
        return True
    job = job_in(run, record.load_record(run).job)
    return job is not None and job.is_alive()


def submit(
    target: str,
    arguments: list[str],
    folder: Path,
    *,
    time_limit_s: int | None,
    gpus: int = 0,
    on: Sequence[str] = (),
    name: str,
    code: Path | None = None,
    nice: int = 0,
) -> Job:
    """Start `package.module:function(*arguments)` as a job on this machine; its files lie in `folder/name`.

    It gets `gpus` of the GPUs named by `on`, by default of those that this process may give, and a priority
    that is lower by `nice`. It may run for ever when `time_limit_s` is None. The job and what it starts
    import Tarmac from the folder `code`, where it is given. TarmacError with the helper's last lines when it
    cannot be submitted.
    """
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    limit_s = UNLIMITED_S if time_limit_s is None else time_limit_s
    request = [target, arguments, str(place), limit_s, gpus, nice]
    submitted, printed = place / SUBMITTED, place / "submit.log"
    submitted.unlink(missing_ok=True)
    environment = {**_environment(code), **({SPARE_GPUS: ",".join(on)} if on else {})}
    with printed.open("ab") as output, suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-c", HELPER, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            timeout=SUBMIT_TIMEOUT_S,
        )
    if not submitted.exists():
        tail = "\n  ".join(printed.read_text(errors="replace").splitlines()[-5:])
        raise TarmacError(f"the job {name} could not be submitted; {printed} ends:\n  {tail}")
    return Job.from_json(read_json(submitted))


def submit_to_slurm(
    target: str,
    arguments: list[str],
    folder: Path,
    engine: TrainEngine | EvaluateEngine,
    *,
    key: str,
    name: str,
    code: Path | None = None,
    queue: str = "",
) -> Job:
    """Start the same as a Slurm job on one node, as `engine` asks, which stands under `key` in the config.
    `queue` is its name in Slurm's queue, a new one unless given.

    `folder` and the code have to be at the same paths on the nodes. TarmacError with Slurm's words when it
    does not accept the job.
    """
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    known_as = Queue(queue or f"tarmac-{key.rpartition('.')[2]}-{secrets.token_hex(4)}")
    function = functools.partial(enter_in_slurm, target, arguments, engine.gpus or 0)
    path = None if code is None else str(code.resolve())
    (submitted,) = known_as.submit([function], place, engine, key, path)
    return Job(submitted.id, submitted, place)


def _environment(code: Path | None) -> dict[str, str]:
    environment = child_environment()
    if code is not None:
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([str(code.resolve()), *([known] if known else [])])
    return environment


def submit_from_helper(request: str) -> None:
    """Hand the job to submitit, whose controller becomes a child of this process, and record the job."""
    import submitit  # late, as only the helper needs it

    target, arguments, folder, limit_s, gpus, nice = json.loads(request)
    executor = submitit.LocalExecutor(folder, max_num_timeout=0)
    executor.update_parameters(
        timeout_min=limit_s / 60, signal_delay_s=min(SIGNAL_DELAY_S, limit_s // 2), stderr_to_stdout=True
    )
    submitted = executor.submit(enter, target, arguments, gpu_environment(gpus, os.environ), nice)
    job = Job(submitted.job_id, Identity.of(int(submitted.job_id)), Path(folder))
    write_json(job.folder / SUBMITTED, job.to_json())


def enter(target: str, arguments: list[str], environment: Mapping[str, str | None], nice: int = 0) -> None:
    """Begin a local job: have the kernel end this process with its controller, then call the target.

    submitit hides all GPUs of a local job that asks it for none, and passes on numbers but no names.
    """
    controller = os.environ.get(CONTROLLER)
    if controller is not None:
        signal_at_starters_end(signal.SIGKILL)
        if os.getppid() != int(controller):
            os._exit(1)  # it ended before the kernel could be asked
    os.nice(nice)
    _call(target, arguments, environment)


def enter_in_slurm(target: str, arguments: list[str], gpus: int) -> None:
    """Begin a Slurm job, which sees the GPUs that Slurm gives it, and no others of its node.

    Variables that it inherited from its submitter do not describe this node.
    """
    hides = gpus == 0 and "SLURM_JOB_GPUS" not in os.environ
    _call(target, arguments, {SPARE_GPUS: None, CONTROLLER: None, **({VISIBLE_GPUS: ""} if hides else {})})


def _call(target: str, arguments: list[str], environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, _end_at_time_limit)
    module, _, function = target.partition(":")
    getattr(importlib.import_module(module), function)(*arguments)


def _end_at_time_limit(signum: int, frame: FrameType | None) -> None:
    raise TarmacError("the job came to its time limit; give its engine block a longer time")
