"""What a rank sets for its process before it computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tasks.core.schema import Train
from tasks.training import devices

BLOCK = {
    "recipe": "clip",
    "model": {},
    "batch_size": 4,
    "steps": 2,
    "lr": 0.1,
    "checkpoint_every": 1,
    "threads": 1,
}


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    devices.choose(Train.model_validate(BLOCK))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_determinism_is_one_key(is_deterministic: bool) -> None:
    devices.choose(Train.model_validate({**BLOCK, "deterministic": is_deterministic}))
    assert torch.are_deterministic_algorithms_enabled() == is_deterministic
    assert not torch.is_deterministic_algorithms_warn_only_enabled(), "attention's backward only warns then"
    fast = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    assert fast == (not is_deterministic,) * 2
    assert torch.backends.cudnn.benchmark == (not is_deterministic)


def test_it_is_on_unless_turned_off() -> None:
    devices.choose(Train.model_validate(BLOCK))
    assert torch.are_deterministic_algorithms_enabled() and not torch.backends.cudnn.benchmark


class Gpu:
    """Stands for torch.cuda where there is none, and writes down in which order a copy is told to run."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.current, self.events = "computing", 0

    def Stream(self, device: torch.device) -> Gpu:
        return self

    def current_stream(self, device: torch.device) -> Gpu:
        return self

    def record_event(self) -> Any:
        self.events += 1
        number = self.events
        self.told.append(f"mark {number}")
        return SimpleNamespace(synchronize=lambda: self.told.append(f"host waits for {number}"))

    @contextmanager
    def stream(self, _: Any) -> Iterator[None]:
        self.current = "copying"
        yield
        self.current = "computing"

    def wait_stream(self, stream: Any) -> None:
        self.told.append(f"{self.current} waits for copies")

    def copy(self, value: torch.Tensor) -> torch.Tensor:
        self.told.append(f"copy while {self.current}")
        return value


def test_a_batch_goes_to_a_gpu_beside_the_step_before(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    monkeypatch.setattr(torch.Tensor, "to", lambda value, *_, **__: gpu.copy(value))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: gpu.told.append("kept until computed"))
    uploads = devices.Uploads(devices.Device(torch.device("cuda"), "bf16"))
    for number in range(3):
        (part,) = uploads.put([{"key": ["a"], "image": torch.full((1,), number)}])
        assert part["key"] == ["a"] and int(part["image"]) == number
    copied = ["copy while copying", "computing waits for copies", "kept until computed"]
    assert gpu.told == [
        *("mark 1", *copied),
        *("host waits for 1", "mark 2", *copied),
        *("host waits for 2", "mark 3", *copied),
    ]


FAULTS = """
import resource, torch
from tasks.core.schema import Train
from tasks.training import devices

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(4, 2**20) + 1  # 16 MiB twice
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

devices.choose(Train.model_validate(BLOCK))
faults()
print(faults())
"""


@pytest.mark.proof
def test_a_step_takes_the_memory_that_the_last_one_freed() -> None:
    """In a process of its own: another test's may have been set already."""
    program = FAULTS.replace("BLOCK", repr(BLOCK))
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(said.stdout) < 4096, "pages of the kernel's, of which one tensor has 4,096"
