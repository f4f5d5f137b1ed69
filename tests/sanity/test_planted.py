"""Mistakes that were planted in real small trainings are found, and healthy trainings raise no doubt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.sanity.planted import CASES, HEALTHY, PLANTED, Case

PATIENCE_S = 900.0
SEEDS = (0, 1, 2)
DAILY = ("captions of other pictures",)


def trained(case: Case, seed: int) -> list[dict[str, Any]]:
    """The findings of the training in a process of its own, whose code the case may patch."""
    words = [sys.executable, "-m", "tests.sanity.planted", case.name, str(seed)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.proof
@pytest.mark.parametrize("name", DAILY)
def test_a_planted_mistake_is_found(name: str) -> None:
    case = CASES[name]
    found = trained(case, 0)
    assert case.codes & {one["code"] for one in found}
    misaligned = next(one for one in found if one["code"] == "labels.misaligned")
    assert misaligned["step"] == 100 and "pictures differ" in misaligned["evidence"]["checked"]


@pytest.mark.proof
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", [pytest.param(one, id=one.name) for one in PLANTED])
def test_planted_mistakes_are_found(case: Case, seed: int) -> None:
    found = trained(case, seed)
    assert case.codes & {one["code"] for one in found}, found


@pytest.mark.proof
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", [pytest.param(one, id=one.name) for one in HEALTHY])
def test_a_healthy_training_raises_no_doubt(case: Case, seed: int) -> None:
    found = trained(case, seed)
    assert not [one for one in found if one["severity"] != "info"]
