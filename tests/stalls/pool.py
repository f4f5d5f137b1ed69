"""The fault pool of NVIDIA's resiliency extension, as far as a CPU can do it: each fault in the first, the second and
the last of four gloo ranks, injected by its own code (`inject_fault` of `nvidia-resiliency-ext`)."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from tests.stalls.contract import Stall, Training, beside, launch, says
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


def faulty(folder: Path, fault: str, rank: int, *, is_end: bool, **env: str) -> Training:
    """Ranks into one of which the fault is injected; ready at their end, or some seconds after the fault."""
    path = os.pathsep.join([PYTHON["PYTHONPATH"], beside(*PACKAGES)[0]])
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
        missing=lambda: beside(*PACKAGES)[1],
        rank=rank,
        words=words,
    )
    for fault, codes, words in FAULTS
    for rank in AT
)
