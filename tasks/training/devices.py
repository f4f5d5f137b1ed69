"""Where a rank computes: the GPU when there is one, else the CPU with a fixed number of threads.

Unless `train.deterministic` is off, everything is set to give the same bits again, because a resumed run must
end where an undisturbed one does. That costs some speed on a GPU, and an operation without a deterministic
form ends the training: torch's mode that only warns leaves the backward pass of attention as it is. No GPU
has kept the promise yet; `tests/benchmarks/bench_cuda.py` measures it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.core.errors import UsageError
from tasks.core.process import keep_freed_memory
from tasks.core.schema import Train

DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
"""Where a driver shows, on Linux and in WSL."""
MODE = "torch.use_deterministic_algorithms(True)"
"""What every refusal of torch's deterministic mode names."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Device:
    """A torch device, and the precision of the arithmetic on it."""

    torch: torch.device
    precision: str

    @property
    def is_cuda(self) -> bool:
        return self.torch.type == "cuda"

    def autocast(self) -> AbstractContextManager[Any]:
        """bf16 or fp16 where it is asked for; weights and optimizer stay in fp32."""
        lower = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        return nullcontext() if lower is None else torch.autocast(self.torch.type, lower)

    def put(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with its tensors on the device; from pinned memory the copy runs beside the host."""
        return {
            name: value.to(self.torch, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in batch.items()
        }

    def memory(self) -> dict[str, int]:
        """`system/gpu_bytes`, the most that tensors have taken of a GPU; empty on a CPU."""
        return {"system/gpu_bytes": torch.cuda.max_memory_allocated(self.torch)} if self.is_cuda else {}


def choose(train: Train) -> Device:
    """The device of this process, with threads and determinism set for it, before it joins other ranks: NCCL
    keeps from sums by NVLS, which differ from run to run, if determinism is on when its group is made.

    Of several ranks on one machine each has the GPU of its LOCAL_RANK.
    """
    keep_freed_memory()
    _set_determinism(train.deterministic)
    torch.set_num_threads(train.threads)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return Device(device, train.precision)
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    if torch.version.cuda and not is_hidden and any(driver.exists() for driver in DRIVERS):
        says = "a GPU's driver is here, but torch %s cannot use it, so this trains on the CPU"
        logger.warning(says, torch.__version__)
    return Device(torch.device("cpu"), train.precision)


@contextmanager
def forms_demanded() -> Iterator[None]:
    """UsageError that names `train.deterministic` for an operation that has no deterministic form here."""
    try:
        yield
    except RuntimeError as error:
        if MODE not in str(error):
            raise
        problem = str(error).partition(", but you set")[0].partition(". ")[0]
        raise UsageError(
            f"train.deterministic: {problem}; set train.deterministic: false, with which a resumed training "
            "does not end in the bits of an undisturbed one"
        ) from error


def _set_determinism(is_deterministic: bool) -> None:
    """Off, as open_clip's trainer has it: TensorFloat-32 in the place of fp32 products, and the convolution
    that cuDNN measures to be the fastest."""
    if is_deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # read when CUDA starts; see torch's notes
    torch.use_deterministic_algorithms(is_deterministic)
    torch.backends.cuda.matmul.allow_tf32 = not is_deterministic
    torch.backends.cudnn.allow_tf32 = not is_deterministic
    torch.backends.cudnn.benchmark = not is_deterministic
    torch.backends.cudnn.deterministic = is_deterministic
