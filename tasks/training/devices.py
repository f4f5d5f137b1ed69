"""The device of a rank: the GPU when there is one, else the CPU with a fixed number of threads.

With `train.deterministic`, everything is set to give the same bits again, because a resumed run must end
where an undisturbed one does. It is the default on a CPU. On a GPU it costs speed, and an operation without a
deterministic form ends the training: torch's mode that only warns leaves the backward pass of attention as it
is. It has not been measured on a GPU yet; `tests/benchmarks/bench_cuda.py` does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.core.errors import UsageError
from tasks.core.process import keep_freed_memory
from tasks.core.schema import Train
from tasks.models.precision import autocast

DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/dxg"))
"""They exist where a GPU's driver is installed, on Linux and in WSL."""
MODE = "torch.use_deterministic_algorithms(True)"
"""Every error of torch's deterministic mode contains it."""
LOWER = ("bf16", "fp16")
FLOPS_PER_S = {
    "B200": 2250e12,
    "H200 NVL": 835.5e12,
    "H200": 989.4e12,
    "H100 NVL": 835.5e12,
    "H100 PCIe": 756e12,
    "H100": 989.4e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10G": 70e12,
    "RTX 4090": 165.2e12,
}
"""Dense products of matrices in bf16, by a part of the GPU's name. Source: NVIDIA's data sheets."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Device:
    """A torch device, and the precision of the arithmetic on it."""

    torch: torch.device
    precision: str
    is_deterministic: bool = True

    @property
    def is_cuda(self) -> bool:
        return self.torch.type == "cuda"

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context of the precision; weights and optimizer stay in fp32."""
        return autocast(self.torch.type, self.precision)

    def put(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with its tensors on the device; from pinned memory the copy runs beside the
        host."""
        return {
            name: value.to(self.torch, non_blocking=True) if isinstance(value, Tensor) else value
            for name, value in batch.items()
        }

    def flops_per_s(self) -> float | None:
        """Return what the device computes in a second at most; None of a CPU, and of a GPU not listed."""
        if not self.is_cuda:
            return None
        name = torch.cuda.get_device_name(self.torch)
        at_most = next((most for part, most in FLOPS_PER_S.items() if part in name), None)
        if at_most is None or self.precision in LOWER:
            return at_most
        return None if self.is_deterministic else at_most / 2  # TensorFloat-32

    def memory(self) -> dict[str, int]:
        """Return `system/gpu_bytes`, the most memory that tensors have taken on a GPU; empty on a CPU."""
        return {"system/gpu_bytes": torch.cuda.max_memory_allocated(self.torch)} if self.is_cuda else {}


class Uploads:
    """Copies batches of a training to its device; to a GPU on a stream of its own, beside the step before.

    The host waits for the step before last, so two batches lie on the GPU at most.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.is_cuda:
            self._stream = torch.cuda.Stream(device.torch)  # type: ignore[no-untyped-call]
        self._before: torch.cuda.Event | None = None

    def put(self, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the parts of a batch with their tensors on the device, to be used on its current stream."""
        if self._stream is None:
            return [self._device.put(part) for part in parts]
        computing = torch.cuda.current_stream(self._device.torch)
        if self._before is not None:
            self._before.synchronize()
        self._before = computing.record_event()
        with torch.cuda.stream(self._stream):
            there = [self._device.put(part) for part in parts]
        computing.wait_stream(self._stream)
        for part in there:
            for value in part.values():
                if isinstance(value, Tensor):
                    value.record_stream(computing)
        return there


def choose(train: Train) -> Device:
    """Return the device of this process, with threads and determinism set for it.

    It has to be called before the process joins other ranks: NCCL avoids sums by NVLS, which differ from run
    to run, only if determinism is on when its group is made. Of several ranks on one machine each has the GPU
    of its LOCAL_RANK. Without determinism, as in open_clip's trainer, TensorFloat-32 takes the place of fp32
    products, and cuDNN measures which convolution is the fastest.
    """
    keep_freed_memory()
    has_gpu = torch.cuda.is_available()
    exact = not has_gpu if train.deterministic is None else train.deterministic
    if exact:  # read when CUDA and NCCL start; see torch's notes on reproducibility
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("NCCL_ALGO", "^NVLS")
    torch.use_deterministic_algorithms(exact)
    torch.backends.cuda.matmul.allow_tf32 = not exact
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cudnn.benchmark = not exact
    torch.backends.cudnn.deterministic = exact
    torch.set_num_threads(train.threads)
    precision = train.precision
    if precision == "auto":
        precision = "bf16" if has_gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if has_gpu:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
        return Device(device, precision, exact)
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    if torch.version.cuda and not is_hidden and any(driver.exists() for driver in DRIVERS):
        logger.warning(
            "a GPU's driver is here, but torch %s cannot use it, so this trains on the CPU", torch.__version__
        )
    return Device(torch.device("cpu"), precision, exact)


@contextmanager
def forms_demanded() -> Iterator[None]:
    """Raise UsageError that names `train.deterministic` for an operation without a deterministic form
    here."""
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


def random_state() -> dict[str, Tensor]:
    """Return the states of the generators that a training process draws from.

    Data has its own generator, made from the position.
    """
    cuda = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {}
    return {"cpu": torch.get_rng_state(), **cuda}


def set_random_state(state: Mapping[str, Tensor | None]) -> None:
    """Set the generators; a state that was saved on another kind of device sets those that both have."""
    assert state["cpu"] is not None
    torch.set_rng_state(state["cpu"])
    cuda = state.get("cuda")
    if torch.cuda.is_available() and cuda is not None:
        torch.cuda.set_rng_state(cuda)
