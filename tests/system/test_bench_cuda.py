"""The script for a GPU does all of its work on a CPU too, and measures nothing where it was to find a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.models.examples import TRAINED

pytestmark = pytest.mark.system
SMALL = "--device cpu --model tarmac/digits --batch 32 --steps 12 --workers 1 --threads 1 --rounds 1"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_cuda", *arguments],
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
    )


def test_without_a_gpu_it_says_so() -> None:
    done = bench()
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "no GPU" in done.stderr


@pytest.mark.proof
def test_on_a_cpu_it_proves_what_does_not_need_a_gpu(tmp_path: Path) -> None:
    done = bench(*SMALL.split(), "--out", str(tmp_path / "cpu.json"))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "cpu.json").read_text())
    assert found["card"] == "cpu"
    for name, kept in found["digits"]["kept"].items():
        assert kept or name.startswith("samples a second"), name
    for precision in ("fp32", "bf16", "fp16"):
        losses = found["curves"][precision]["losses"]
        assert len(losses) == 12 and losses[-1] < losses[0], precision
    assert found["bits"]["fp16"]["loss_scale"] is not None
    assert found["recipes"].keys() == set(TRAINED)
    assert 0 <= found["digits"]["device"]["idle"] < 1
    assert found["digits"]["beside"]["rates"].keys() == {"tarmac", "open_clip", "compiled"}
