"""Jobs of a run through submitit, on this machine or by Slurm. A job outlives whoever submitted it.

submitit's local controller shares the session and the streams of the process that submits, so a terminal's
Ctrl-C or hang-up would end it; a short-lived helper in a session of its own submits instead. The job's
process binds its life to the controller's, hence one lives exactly as long as the other.
submitit's default time limit, two minutes, is always replaced by ours, and no GPU is visible unless asked
for, but where nothing tells which GPUs there are: there the job finds out by itself.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import submitit

from tasks.core.engines.slurm_queue import Queue
from tasks.core.errors import TarmacError
from tasks.core.process import Identity, child_environment, signal_at_starters_end
from tasks.runs.job import Job

if TYPE_CHECKING:
    from tasks.core.schema.engine import EvaluateEngine, TrainEngine

SIGNAL_DELAY_S = 60
"""A job hears of its time limit this long before it is ended, or at half time if that is later."""
SUBMIT_TIMEOUT_S = 60
UNLIMITED_S = 100 * 365 * 24 * 3600
"""What submitit, which asks for a time limit, is given where there is none."""
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
SPARE_GPUS = "TARMAC_SPARE_GPUS"
"""The GPUs that a job was not given, for the jobs that it submits itself."""
CONTROLLER = "SUBMITIT_LOCAL_JOB_ID"
DEVICES = Path("/dev")
HELPER = "import sys; from tasks.runs.jobs import answer; answer(sys.argv[1], int(sys.argv[2]))"
"""Imports this module by name: submitit pickles functions of a `__main__` by value."""


def submit(
    target: str,
    arguments: list[str],
    folder: Path,
    *,
    time_limit_s: int | None,
    gpus: int = 0,
    name: str,
    code: Path | None = None,
) -> Job:
    """Start `package.module:function(*arguments)` as a job whose files lie in `folder/name`; it may run
    for ever when `time_limit_s` is None.

    The job and what it starts import Tarmac from the folder `code`, where it is given.
    TarmacError with the helper's last words when it cannot be submitted.
    """
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    request = {
        "target": target,
        "arguments": arguments,
        "folder": str(place),
        "time_limit_s": UNLIMITED_S if time_limit_s is None else time_limit_s,
        "gpus": gpus,
    }
    read_end, write_end = os.pipe()
    printed = place / "submit.log"
    with printed.open("ab") as output, os.fdopen(read_end, "rb") as reply:
        try:
            helper = subprocess.Popen(
                [sys.executable, "-c", HELPER, json.dumps(request), str(write_end)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=_environment(code),
                pass_fds=[write_end],
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        try:
            helper.wait(timeout=SUBMIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            helper.kill()
            helper.wait()
        text = reply.read()
    if not text:
        tail = "\n  ".join(printed.read_text(errors="replace").splitlines()[-5:])
        raise TarmacError(f"the job {name} could not be submitted; {printed} ends:\n  {tail}")
    return Job.from_json(json.loads(text))


def submit_to_slurm(
    target: str,
    arguments: list[str],
    folder: Path,
    engine: TrainEngine | EvaluateEngine,
    *,
    key: str,
    name: str,
    code: Path | None = None,
) -> Job:
    """The same as a Slurm job on one node, as `engine` says, which stands under `key` in the config.

    `folder` and the code have to be at the same paths on the nodes. TarmacError with Slurm's words when it
    refuses.
    """
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    queue = Queue(f"tarmac-{key.rpartition('.')[2]}-{secrets.token_hex(4)}")
    function = functools.partial(enter_in_slurm, target, arguments, engine.gpus or 0)
    path = _environment(code).get("PYTHONPATH")
    submitted = queue.submit_one(function, place, engine, key, path)
    return Job(submitted.id, submitted, place)


def _environment(code: Path | None) -> dict[str, str]:
    environment = child_environment()
    if code is None:
        return environment
    known = environment.get("PYTHONPATH")
    path = os.pathsep.join([str(code.resolve()), *([known] if known else [])])
    return {**environment, "PYTHONPATH": path}


def visible_gpus() -> tuple[str, ...]:
    """The names of the GPUs that this process sees."""
    return _devices_here(os.environ, DEVICES)


def restrict(names: Sequence[str]) -> None:
    """Show these GPUs to what this process starts from now on; its jobs take the others that it saw."""
    spare = [name for name in visible_gpus() if name not in names]
    os.environ[VISIBLE_GPUS] = ",".join(names)
    os.environ[SPARE_GPUS] = ",".join(spare)


def gpus_here(devices: Path = DEVICES) -> int:
    """How many GPUs a job of this machine may be given; told without CUDA, which would start it.

    0 also where GPUs have no device files of NVIDIA's (WSL, ROCm, Jetson).
    """
    return len(_devices_here(os.environ, devices))


def gpu_environment(
    gpus: int, environment: Mapping[str, str], devices: Path = DEVICES
) -> dict[str, str | None]:
    """What a job that asks for `gpus` gets of the GPUs that its submitter sees: the first spare ones, else
    the first of all. None is a variable to unset.

    TarmacError when there are fewer.
    """
    here = _names(environment.get(SPARE_GPUS, "")) or _devices_here(environment, devices)
    if len(here) < gpus:
        raise TarmacError(f"{gpus} GPUs are asked for, but there are {len(here)}; see {VISIBLE_GPUS}")
    is_told = bool(here) or VISIBLE_GPUS in environment
    return {
        VISIBLE_GPUS: ",".join(here[:gpus]) if is_told else None,
        SPARE_GPUS: ",".join(here[gpus:]),
    }


def _devices_here(environment: Mapping[str, str], devices: Path) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES names, else the numbers of as many GPUs as have a device file."""
    visible = environment.get(VISIBLE_GPUS)
    if visible is not None:
        return _names(visible)
    count = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in devices.glob("nvidia*"))
    return tuple(str(number) for number in range(count))


def _names(visible: str) -> tuple[str, ...]:
    """The devices in CUDA_VISIBLE_DEVICES: numbers, or names such as GPU-… and MIG-…; -1 ends the list."""
    names = [part.strip() for part in visible.split(",") if part.strip()]
    return tuple(names[: names.index("-1")] if "-1" in names else names)


def _submit_here(request: dict[str, Any]) -> Job:
    """The helper's part: hand the job to submitit, whose controller becomes a child of this process."""
    limit_s = int(request["time_limit_s"])
    gpus = int(request["gpus"])
    folder = Path(request["folder"])
    executor = submitit.LocalExecutor(folder, max_num_timeout=0)
    executor.update_parameters(
        timeout_min=limit_s / 60,
        signal_delay_s=min(SIGNAL_DELAY_S, limit_s // 2),
        stderr_to_stdout=True,
    )
    environment = gpu_environment(gpus, os.environ)
    job = executor.submit(enter, request["target"], request["arguments"], environment)
    return Job(job.job_id, Identity.of(int(job.job_id)), folder)


def enter(target: str, arguments: list[str], environment: Mapping[str, str | None]) -> None:
    """The job's first lines: tie this process to its controller, show it its GPUs, then call the target.

    submitit hides all GPUs of a local job that asks it for none, and passes on numbers but no names.
    """
    _end_with_controller()
    _enter(target, arguments, environment)


def enter_in_slurm(target: str, arguments: list[str], gpus: int) -> None:
    """The first lines of a Slurm job, which sees the GPUs that Slurm gives it, and no others of its node.

    What it inherited from its submitter says nothing of this node.
    """
    hides = gpus == 0 and "SLURM_JOB_GPUS" not in os.environ
    _enter(target, arguments, {SPARE_GPUS: None, CONTROLLER: None, **({VISIBLE_GPUS: ""} if hides else {})})


def _enter(target: str, arguments: list[str], environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGUSR2, _end_at_time_limit)
    module, _, function = target.partition(":")
    getattr(importlib.import_module(module), function)(*arguments)


def _end_with_controller() -> None:
    """Have the kernel end this process when its controller ends."""
    controller = os.environ.get(CONTROLLER)
    if controller is None:
        return
    signal_at_starters_end(signal.SIGKILL)
    if os.getppid() != int(controller):
        os._exit(1)  # it ended before the kernel was told


def _end_at_time_limit(signum: int, frame: FrameType | None) -> None:
    raise TarmacError("the job came to its time limit; give its engine block a longer time")


def answer(request: str, descriptor: int) -> None:
    """The helper's whole life: submit, write the job's JSON to the pipe, end."""
    os.set_inheritable(descriptor, False)
    os.write(descriptor, json.dumps(_submit_here(json.loads(request)).to_json()).encode())
