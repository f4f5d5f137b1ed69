"""What a rank sets for its process before it computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

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
