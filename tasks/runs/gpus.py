"""The GPUs of this machine: which ones a process sees, which ones a job gets, and which training holds them.

Nothing here imports CUDA, which would start it. Names are those of CUDA_VISIBLE_DEVICES.

A lock per device keeps two trainings off one GPU. It is the kernel's (flock) on a file named after the
device, and the training process inherits it from its agent. So it lives exactly as long as one of them does,
however they end, and nobody has to tidy it up. The file's text names the holder; a text without a lock means
nothing. Evaluations share such a lock among each other, so that no training starts on their GPU either; but
while a training waits for them alone, no further one begins. The CPU is shared. One device under two names, a
number and a UUID, counts as two; so do the same numbers in two Slurm allocations, where they are two devices.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasks.core.errors import TarmacError
from tasks.core.schema import Engines, TrainEngine

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
SPARE_GPUS = "TARMAC_SPARE_GPUS"
"""The GPUs that a job was not given, for the jobs that it submits itself."""
DEVICES = Path("/dev")
SMI_S = 10.0
BF16_SINCE = 8.0
LOCKS = Path("/tmp")
"""Not TMPDIR or XDG_RUNTIME_DIR, which differ between a terminal, a service and a job of the same user."""
NEXT, NEXT_S = "next", 5.0
"""The file that a training touches while it waits for evaluations, and for how long that counts."""


def visible_gpus() -> tuple[str, ...]:
    """Return the names of the GPUs that this process sees."""
    return _visible(os.environ, DEVICES)


def gpus_here(devices: Path = DEVICES) -> int:
    """Return how many GPUs a job of this machine may be given.

    It is 0 also where GPUs have no device files of NVIDIA's (WSL, ROCm, Jetson).
    """
    return len(_visible(os.environ, devices))


def usable_gpus() -> tuple[str, ...]:
    """Return the names of the GPUs for jobs of this process: those that it was not given, then its own."""
    return (*_names(os.environ.get(SPARE_GPUS, "")), *visible_gpus())


def trains_on_gpus(engine: TrainEngine) -> bool:
    """Return whether a training by this block of the config will run on GPUs: on those that it asks for, or
    on what this machine has."""
    if engine.gpus is not None or engine.kind == "slurm":
        return engine.gpus is not None
    return engine.ranks is None and gpus_here() > 0


def share_gpus(engines: Engines) -> bool:
    """Return whether the evaluations find no other GPUs than those of the training."""
    if engines.evaluate.kind == "slurm" or not trains_on_gpus(engines.train):
        return False
    return engines.train.kind == "slurm" or gpus_here() <= engines.train.per_node


def memory_of_gpu() -> float | None:
    """Return the bytes of this machine's smallest GPU; None where nvidia-smi does not say."""
    return min((float(line) * 2**20 for line in _ask_smi("memory.total")), default=None)


def products_of_gpus() -> list[str]:
    """Return the product name of each of this machine's GPUs; none where nvidia-smi does not say."""
    return _ask_smi("name", str) if gpus_here() else []


def compute_in_bf16() -> bool:
    """Return whether this machine's GPUs have bf16, as those of compute capability 8.0 and above; true where
    nvidia-smi does not say."""
    return all(float(line) >= BF16_SINCE for line in _ask_smi("compute_cap"))


def _ask_smi(what: str, kind: Callable[[str], object] = float) -> list[str]:
    """A value of this kind for each GPU; none where nvidia-smi gives others."""
    command = ["nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=True).stdout
        return [str(kind(line.strip())) for line in said.splitlines() if line.strip()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def restrict(names: Sequence[str]) -> None:
    """Show these GPUs to what this process starts from now on; its jobs take the others that it saw."""
    spare = [name for name in visible_gpus() if name not in names]
    os.environ[VISIBLE_GPUS] = ",".join(names)
    os.environ[SPARE_GPUS] = ",".join(spare)


def gpu_environment(
    gpus: int, environment: Mapping[str, str], devices: Path = DEVICES
) -> dict[str, str | None]:
    """Return the variables for a job that asks for `gpus` of the GPUs that its submitter sees.

    The job gets the first spare ones, else the first of all. None marks a variable to unset. TarmacError when
    there are fewer.
    """
    here = _names(environment.get(SPARE_GPUS, "")) or _visible(environment, devices)
    if len(here) < gpus:
        raise TarmacError(f"{gpus} GPUs are asked for, but there are {len(here)}; see {VISIBLE_GPUS}")
    is_known = bool(here) or VISIBLE_GPUS in environment
    return {VISIBLE_GPUS: ",".join(here[:gpus]) if is_known else None, SPARE_GPUS: ",".join(here[gpus:])}


def _visible(environment: Mapping[str, str], devices: Path) -> tuple[str, ...]:
    """The GPUs in CUDA_VISIBLE_DEVICES, else the numbers of as many GPUs as have a device file."""
    visible = environment.get(VISIBLE_GPUS)
    if visible is not None:
        return _names(visible)
    count = sum(re.fullmatch(r"nvidia\d+", path.name) is not None for path in devices.glob("nvidia*"))
    return tuple(map(str, range(count)))


def _names(visible: str) -> tuple[str, ...]:
    """The devices in CUDA_VISIBLE_DEVICES: numbers, or names such as GPU-… and MIG-…; -1 ends the list."""
    names = [part.strip() for part in visible.split(",") if part.strip()]
    return tuple(names[: names.index("-1")] if "-1" in names else names)


@dataclass(frozen=True)
class HeldGpus:
    """GPUs that are held until this process and all that inherited `descriptors` release them or end."""

    names: tuple[str, ...]
    descriptors: tuple[int, ...]

    def release(self) -> None:
        """Let go of them; a child that inherited the descriptors holds them as long as it lives."""
        for descriptor in self.descriptors:
            os.close(descriptor)


@dataclass(frozen=True)
class GpusInUse:
    """Too few GPUs are free; `holders` names for each device that is in use who uses it."""

    holders: tuple[str, ...]

    def __str__(self) -> str:
        return f"waiting for a GPU: {'; '.join(self.holders)}"


def take_gpus(visible: Sequence[str], count: int, run: str) -> HeldGpus | GpusInUse:
    """Take the first `count` free ones of `visible` for `run`, all or none.

    TarmacError when so many are not even visible, OSError where no lock can be written.
    """
    if count > len(visible):
        raise TarmacError(f"{count} GPUs are asked for, but there are {len(visible)}: {VISIBLE_GPUS}")
    folder = _lock_folder()
    got: dict[str, int] = {}
    holders, evaluating = [], 0
    for name in visible:
        if len(got) == count:
            break
        path = _lock_of(folder, name)
        descriptor = _locked(path, fcntl.LOCK_EX)
        if descriptor is not None:
            _write_holder(descriptor, run)
            got[name] = descriptor
            continue
        holders.append(f"{name} is used by {_holder(path)}")
        if (shared := _locked(path, fcntl.LOCK_SH)) is not None:
            evaluating += 1
            os.close(shared)
    taken = HeldGpus(tuple(got), tuple(got.values()))
    if len(got) == count:
        return taken
    taken.release()
    if len(got) + evaluating >= count:
        (folder / NEXT).touch()
    return GpusInUse(tuple(holders))


def take_gpu_to_evaluate(names: Sequence[str], run: str, *, is_kept: bool = False) -> HeldGpus | GpusInUse:
    """Take the first of these GPUs that no training holds, beside the evaluations on it. With `is_kept` a
    training that waits does not go first, as the GPU was taken for this evaluation before.

    TarmacError and OSError as `take_gpus`.
    """
    folder = _lock_folder()
    with suppress(FileNotFoundError):
        if not is_kept and time.time() - (folder / NEXT).stat().st_mtime < NEXT_S:
            return GpusInUse(("a training takes the next one",))
    holders = []
    for name in names:
        if (descriptor := _locked(_lock_of(folder, name), fcntl.LOCK_SH)) is not None:
            _write_holder(descriptor, f"an evaluation of {run}")
            return HeldGpus((name,), (descriptor,))
        holders.append(f"{name} is used by {_holder(_lock_of(folder, name))}")
    return GpusInUse(tuple(holders))


def gpu_holders() -> dict[str, str]:
    """Return who uses each of this machine's GPUs that Tarmac has given away, by the name of the device."""
    folder = LOCKS / f"tarmac-{os.getuid()}" / os.environ.get("SLURM_JOB_ID", "devices")
    found = {}
    for path in sorted(folder.glob("gpu-*")):
        free = _locked(path, fcntl.LOCK_EX)
        if free is None:
            found[path.name.removeprefix("gpu-")] = _holder(path)
        else:
            os.close(free)
    return found


def _lock_of(folder: Path, name: str) -> Path:
    return folder / f"gpu-{name.replace('/', '_')}"


def _locked(path: Path, kind: int) -> int | None:
    """A descriptor that holds a lock of this kind on the file; None where another lock forbids that."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _write_holder(descriptor: int, run: str) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps({"run": run, "pid": os.getpid()}).encode(), 0)


def _lock_folder() -> Path:
    """This user's folder of locks; TarmacError where somebody else has made it."""
    folder = LOCKS / f"tarmac-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat(follow_symlinks=False).st_uid != os.getuid():
        raise TarmacError(
            f"{folder}: belongs to another user, so it cannot hold the locks of GPUs; remove it"
        )
    folder = folder / os.environ.get("SLURM_JOB_ID", "devices")
    folder.mkdir(exist_ok=True)
    return folder


def _holder(path: Path) -> str:
    try:
        text = json.loads(path.read_bytes())
        return f"{text['run']} (process {text['pid']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "a training that is just starting"
