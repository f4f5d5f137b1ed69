"""Goodput counts only steps that were kept, and names where the rest of the time went."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tasks.core.engines.slurm_queue import SlurmJob
from tasks.runs.goodput import Goodput, add_up
from tasks.runs.lives import Life
from tasks.runs.record import Attempt


def attempt(started: float, **facts: Any) -> Attempt:
    known = {"host": "a", "boot_id": "b", "pid": 1, "pid_started": 1.0, "job": None}
    return Attempt(started=started, **known, code_digest="", versions={}, **facts)


def life(began: float, first: int, step: int, spent: dict[str, float], **facts: Any) -> Life:
    return Life(int(began), began, began + sum(spent.values()), first, step, spent, **facts)


def spent_of(found: Goodput | None) -> dict[str, float]:
    assert found is not None
    return {name: seconds for name, seconds in found.spent.items() if seconds}


WHOLE = {"start": 8.0, "first_batch": 2.0, "step": 80.0, "validate": 6.0, "checkpoint": 4.0}


def test_the_time_of_one_life_is_that_of_its_phases() -> None:
    found = add_up([attempt(5.0)], [[life(10.0, 0, 100, WHOLE, data_wait_s=16.0)]])
    assert spent_of(found) == {
        "starting": 13.0,
        "first batch": 2.0,
        "training": 64.0,
        "waiting for data": 16.0,
        "validating": 6.0,
        "saving": 4.0,
    }
    assert str(found).startswith("goodput 61%: training 64 s, waiting for data 16 s")


def test_steps_that_are_done_again_count_as_restarting() -> None:
    """The first life came to step 100, and the second one began at the checkpoint of step 75."""
    lives = [life(0.0, 0, 100, {"step": 100.0}), life(110.0, 75, 200, {"start": 5.0, "step": 125.0})]
    assert spent_of(add_up([attempt(0.0)], [lives])) == {"training": 200.0, "restarting": 40.0}


def test_a_stall_is_no_training_and_no_validation() -> None:
    stalled = {"step": 60.0, "validate": 5.0}
    found = add_up([attempt(10.0)], [[life(10.0, 0, 100, WHOLE, stalled=stalled)]])
    assert spent_of(found)["stalled"] == 65.0 and spent_of(found)["training"] == 20.0


@pytest.mark.parametrize(("outcome", "counts"), [("lost", True), ("failed", False), ("cancelled", False)])
def test_the_time_until_a_person_goes_on_counts_for_nothing(outcome: str, counts: bool) -> None:
    attempts = [attempt(0.0, outcome=outcome), attempt(1002.0, asked=1000.0)]
    lives = [[life(0.0, 0, 10, {"step": 10.0})], [life(1002.0, 10, 20, {"step": 10.0})]]
    assert spent_of(add_up(attempts, lives)) == {"training": 20.0, "restarting": 992.0 if counts else 2.0}


def test_the_time_in_slurms_queue_is_called_that() -> None:
    slurm = SlurmJob("7", "tarmac-train-1", 0)
    attempts = [
        attempt(30.0, asked=10.0, slurm=slurm, outcome="cancelled"),
        attempt(100.0, asked=41.0, slurm=slurm),
    ]
    lives = [[life(31.0, 0, 10, {"step": 10.0})], [life(100.0, 10, 20, {"step": 10.0})]]
    assert spent_of(add_up(attempts, lives)) == {"queued": 79.0, "starting": 1.0, "training": 20.0}


def test_before_the_ranks_began_there_is_none() -> None:
    assert add_up([attempt(0.0)], [[]]) is None and add_up([], []) is None


def test_the_parts_are_all_of_the_time() -> None:
    found = add_up([attempt(5.0, asked=4.0)], [[life(10.0, 0, 100, WHOLE, data_wait_s=16.0)]])
    assert found is not None and math.isclose(found.total_s, 110.0 - 4.0)
    assert found.to_json()["share"] == round(64 / 106, 4)
