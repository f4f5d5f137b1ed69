"""What an agent does next about evaluations, shown with plain values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tasks.evaluation.expected import WantedEvaluation, wanted_of
from tasks.runs.ledger import LedgerEntry
from tasks.supervision.evaluating.evaluations import (
    EvaluationEvidence,
    Hold,
    JobFailure,
    Mark,
    Pause,
    Submit,
    hold_of,
    next_actions,
    reopened,
    unfinished,
)
from tests.supervision.fakes import make_config

A, B, C = (WantedEvaluation(step, "zero_shot", f"u{step}") for step in (200, 400, 600))
NOTHING = EvaluationEvidence(checkpoints=(), alive=(), running=(), results=(), failures={}, training="going")

TWO = replace(NOTHING, checkpoints=(200, 400))


def entry(want: WantedEvaluation, state: str, attempt: int = 1) -> LedgerEntry:
    return LedgerEntry(want.uid, want.step, want.task, state, None, attempt, at=1.0)  # type: ignore[arg-type]


def test_a_checkpoint_is_submitted_when_it_is_there_and_a_place_is_free() -> None:
    assert next_actions([A, B, C], {}, NOTHING, jobs=1) == []
    two = replace(NOTHING, checkpoints=(200, 400))
    assert next_actions([A, B, C], {}, two, jobs=1) == [Submit(A, 1)]
    assert next_actions([A, B, C], {}, two, jobs=2) == [Submit(A, 1), Submit(B, 1)]
    busy = replace(two, alive=(A.key,))
    assert next_actions([A, B, C], {A.key: entry(A, "submitted")}, busy, jobs=1) == []


def test_evaluations_after_the_training_are_held_until_it_has_ended() -> None:
    assert [hold_of(when, "going") for when in ("idle", "beside")] == ["", ""]
    assert hold_of("after", "complete") == hold_of("after", "broken") == ""
    held = replace(TWO, hold=hold_of("after", "going"))
    assert next_actions([A, B], {}, held, jobs=1) == [
        Hold(A, "waits for the training's end (evaluate.when: after)")
    ]
    busy = replace(held, alive=(A.key,))
    assert next_actions([A, B], {A.key: entry(A, "submitted")}, busy, jobs=1) == [], "there is no place"


def test_a_job_that_works_is_running_and_a_result_is_done() -> None:
    seen = replace(NOTHING, checkpoints=(200,), alive=(A.key,), running=(A.key,))
    assert next_actions([A], {A.key: entry(A, "submitted")}, seen, jobs=1) == [Mark(A, "running")]
    assert next_actions([A], {A.key: entry(A, "running")}, seen, jobs=1) == []
    ended = replace(NOTHING, checkpoints=(200,), results=(A.key,))
    assert next_actions([A], {A.key: entry(A, "running")}, ended, jobs=1) == [Mark(A, "done")]
    assert next_actions([A], {A.key: entry(A, "done")}, ended, jobs=1) == []


@pytest.mark.parametrize("state", ["failed", "lost"])
def test_three_tries_with_pauses_then_the_reasons(state: str) -> None:
    """The pauses stand in the ledger, so another agent keeps them."""
    now, asked, pauses = 1000.0, entry(A, "running"), []
    for attempt, why in enumerate(("it had no memory", "it gave a reason", "it gave a reason"), 1):
        seen = replace(TWO, failures={A.key: JobFailure(state, why)}, now=now)  # type: ignore[arg-type]
        (ended,) = next_actions([A], {A.key: asked}, seen, jobs=1)
        if attempt == 3:
            break
        again = f"{why}; try {attempt + 1} of 3 in {30 * 4 ** (attempt - 1)} s"
        assert ended == Pause(A, why, again)
        asked = replace(asked, state="submitted", tried=(*asked.tried, why), at=now)
        asked = reopened({A.key: asked}, ())[A.key]
        while not (actions := next_actions([A], {A.key: asked}, replace(TWO, now=now), jobs=1)):
            now += 1.0
        pauses.append(now - asked.at)
        assert actions == [Submit(A, attempt + 1)]
        asked = replace(asked, state="running", attempt=attempt + 1)
    assert pauses == [30.0, 120.0]
    assert ended == Mark(A, state, "3 of 3 tries used; it gave a reason; before: it had no memory")  # type: ignore[arg-type]
    final = {A.key: replace(asked, state=state)}  # type: ignore[arg-type]
    assert next_actions([A], final, replace(TWO, now=now), jobs=1) == []
    ahead = replace(asked, attempt=1, tried=("x",), at=now + 3600)
    assert next_actions([A], {A.key: ahead}, replace(TWO, now=now), jobs=1) == [Submit(A, 2)], "another clock"


def test_what_a_person_cancelled_and_what_slurm_does_not_start_is_final() -> None:
    cancelled = replace(TWO, failures={A.key: JobFailure("failed", "cancelled in Slurm", True)})
    assert next_actions([A], {A.key: entry(A, "running")}, cancelled, jobs=1) == [
        Mark(A, "failed", "cancelled in Slurm")
    ]
    stuck = replace(TWO, alive=(A.key,), stuck={A.key: "JobHeldUser"})
    asked = {A.key: entry(A, "submitted")}
    assert next_actions([A, B], asked, stuck, jobs=1) == [Mark(A, "failed", "JobHeldUser")]


def test_a_refused_submission_is_no_try_and_is_repeated_after_longer_and_longer_pauses() -> None:
    now, refused, pauses = 1000.0, entry(A, "submitted"), []
    while True:
        refused = replace(refused.having_been_refused("no process can start"), at=now, refused_since=1000.0)
        begun = now
        while not (actions := next_actions([A], {A.key: refused}, replace(TWO, now=now), jobs=1)):
            now += 1.0
        if actions != [Submit(A, 1)]:
            break
        refused = replace(refused, attempt=1)
        pauses.append(now - begun)
    assert pauses[:8] == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]
    assert actions == [Mark(A, "failed", "no job could be submitted for 30 min; no process can start")]
    assert now == 1000.0 + 1800.0


def test_a_new_agent_tries_anew_what_has_no_result_and_keeps_the_tries_of_the_rest() -> None:
    tried = replace(entry(B, "running", 3), tried=("it gave a reason",))
    found = reopened({A.key: entry(A, "lost", 3), B.key: tried, C.key: entry(C, "done", 2)}, ())
    assert {key: (one.state, one.attempt) for key, one in found.items()} == {
        B.key: ("running", 1),
        C.key: ("done", 2),
    }
    assert reopened({B.key: tried}, {B.key})[B.key].attempt == 3, "its job lives"


def test_another_question_is_another_evaluation() -> None:
    """The result on disk answers the old arguments, so it does not count."""
    seen = replace(NOTHING, checkpoints=(200,), results=(A.key,))
    asked_before = {A.key: replace(entry(A, "done"), uid="other arguments")}
    assert next_actions([A], asked_before, seen, jobs=1) == [Submit(A, 1)]


def test_a_result_that_was_removed_is_made_again() -> None:
    seen = replace(NOTHING, checkpoints=(200,), training="complete")
    assert next_actions([A], {A.key: entry(A, "done")}, seen, jobs=1) == [Submit(A, 1)]
    assert unfinished([A], {A.key: entry(A, "done")}, seen) == [A]


def test_what_is_still_to_come_depends_on_how_training_ended() -> None:
    entries = {A.key: entry(A, "done"), B.key: entry(B, "lost")}
    seen = replace(NOTHING, checkpoints=(200, 400), results=(A.key,))
    assert unfinished([A, B, C], entries, seen) == [C]
    assert unfinished([A, B, C], entries, replace(seen, training="broken")) == []
    complete = replace(seen, training="complete")
    assert unfinished([A, B, C], entries, complete) == [C]
    assert next_actions([A, B, C], entries, complete, jobs=1) == [
        Mark(C, "lost", "there is no checkpoint of step 600")
    ]


def test_the_arguments_of_a_task_are_part_of_the_question(tmp_path: Path) -> None:
    plain = make_config(tmp_path, evaluate={"every": 20, "tasks": ["zero_shot"]})
    task = {"kind": "zero_shot", "label": "digit"}
    other = make_config(tmp_path, evaluate={"every": 20, "tasks": [task]})
    assert [want.key for want in wanted_of("r", plain)] == [(20, "zero_shot"), (40, "zero_shot")]
    assert len({want.uid for want in [*wanted_of("r", plain), *wanted_of("r", other)]}) == 4
    assert wanted_of("r", make_config(tmp_path, evaluate=None)) == []
