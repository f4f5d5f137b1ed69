"""Several ranks by gloo, as processes of their own, take the steps that one takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from tests.training.ranked import take_steps


def take_together(folder: Path, count: int) -> list[dict[str, Any]]:
    """What each rank left."""
    command = [sys.executable, "-m", "tests.training.ranked", str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(count)], cwd=ROOT, stdin=subprocess.DEVNULL)
        for rank in range(count)
    ]
    try:
        assert [rank.wait(timeout=300) for rank in ranks] == [0] * count
    finally:
        for rank in ranks:
            rank.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.proof)])
def test_ranks_have_the_gradients_of_one(tmp_path: Path, count: int) -> None:
    """At once and in halves, of a contrast and of a sum, in float64."""
    ranks = take_together(tmp_path, count)
    assert len(ranks[0]) == 4
    for case in ranks[0]:
        alone = take_steps(case.partition("-")[0], 0)
        for rank in (rank[case] for rank in ranks):
            assert float(rank["loss"]) == pytest.approx(float(alone["loss"]), rel=1e-9)
            assert set(rank["gradients"]) == set(alone["gradients"])
            for name, gradient in alone["gradients"].items():
                assert gradient.dtype == torch.float64
                assert torch.allclose(rank["gradients"][name], gradient, rtol=1e-6, atol=1e-12), (case, name)
            for name, value in alone["weights"].items():
                assert torch.allclose(rank["weights"][name], value, rtol=1e-6, atol=1e-9), (case, name)
                assert torch.equal(rank["weights"][name], ranks[0][case]["weights"][name]), (case, name)
