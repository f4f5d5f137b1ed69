"""The fault pool of NVIDIA's resiliency extension, as far as a CPU can do it: each fault in the first, the second and
the last of four gloo ranks, injected by its own code (`inject_fault` of `nvidia-resiliency-ext`)."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache, partial
from pathlib import Path

from tests.stalls.contract import Stall, Training, launch, says
from tests.stalls.own import PYTHON
from tests.stalls.waits import TORCHRUN

PROGRAM = "tests.stalls.pool_program"
RANKS, AT = 4, (0, 1, 3)
PACKAGES = ("nvidia-resiliency-ext", "nvidia-ml-py", "defusedxml", "tabulate")
SETTLE_S = 4.0
DEBUG_PORT = "POOL_DEBUG_PORT"
"""Where it is set, torch's own debug server listens at that port of rank 0."""
GONE, FAILED, PAUSED, GIL = (
    frozenset({code}) for code in ("process.gone", "process.failed", "rank.paused", "gil.held")
)
FAULTS: tuple[tuple[str, frozenset[str], str], ...] = (
    ("SIGKILL", GONE, "SIGKILL"),
    ("SIGTERM", GONE, "SIGTERM"),
    ("SIGINT", GONE, "SIGINT"),
    ("SEGFAULT", GONE, "SIGSEGV"),
    ("OS_ABORT", GONE, "SIGABRT"),
    ("WORKLOAD_EXC", FAILED, "InjectedException"),
    ("ASYNC_EXC", FAILED, "InjectedException"),
    ("SIGNAL_EXC", FAILED, "termination_signal_handler"),
    ("SIGSTOP", PAUSED, ""),
    ("LOCK_GIL", GIL, ""),
)
"""The name of a fault there, the right codes, and what the verdict must say besides the rank."""


@cache
def injector() -> tuple[str, str | None]:
    """The folder of the packages, which this process keeps for itself; or why they cannot be had."""
    folder = tempfile.mkdtemp(prefix="fault-pool-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    uv = str(Path(sys.executable).with_name("uv"))
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", folder]
    try:
        subprocess.run([*command, *PACKAGES], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        return "", f"nvidia-resiliency-ext cannot be installed: {said}"
    return folder, None


def faulty(folder: Path, fault: str, rank: int, *, is_end: bool, **env: str) -> Training:
    """Ranks into one of which the fault is injected; ready at their end, or some seconds after the fault."""
    path = os.pathsep.join([PYTHON["PYTHONPATH"], injector()[0]])
    command = [TORCHRUN, "--standalone", f"--nproc_per_node={RANKS}", "-m", PROGRAM, fault, str(rank)]
    process, log = launch(command, folder, {**PYTHON, "PYTHONPATH": path, **env})
    mark = folder / "injected"
    is_injected = says(mark, "", SETTLE_S)
    is_over = lambda: process.poll() is not None  # noqa: E731
    return Training(process, log, is_over if is_end else lambda: mark.exists() and is_injected())


STALLS = tuple(
    Stall(
        f"{fault} of rank {rank} of {RANKS}",
        partial(faulty, fault=fault, rank=rank, is_end=codes in (GONE, FAILED)),
        codes,
        missing=lambda: injector()[1],
        rank=rank,
        words=words,
    )
    for fault, codes, words in FAULTS
    for rank in AT
)
