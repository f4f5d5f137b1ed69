from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.core.schema import Config
from tasks.evaluation.expected import wanted_of
from tasks.reporting.evidence import RunContents
from tasks.reporting.notes import Note, notes
from tasks.runs.folder import RunFolder
from tasks.runs.ledger import EvaluationState, LedgerEntry
from tasks.runs.record import Attempt, RunRecord, State
from tests.reporting.finished_run import make_config
from tests.reporting.test_scores import result

RUN = RunFolder(Path("runs/digits-clip-0123456789ab"))


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return make_config(tmp_path, ["a"])


def kinds(evidence: RunContents) -> list[str]:
    return [note.kind for note in notes(evidence)]


def evidence(config: Config | None, state: State = "running", **changes: object) -> RunContents:
    state_record = RunRecord(
        id=RUN.id, name="digits-clip", identity={}, data=[], state=state, reason="because"
    )
    values: dict[str, Any] = {"rows": [{}], "results": [result(200, 0.9)], **changes}
    has_steps = config is not None and config.train is not None and config.train.steps is not None
    done = [entry_of(config, one.step, "done") for one in values["results"] if has_steps]
    values["ledger"] = {**{one.key: one for one in done}, **values.get("ledger", {})}
    return RunContents(RUN, state_record, config, **values)  # type: ignore[arg-type]


def entry_of(config: Config, step: int, state: EvaluationState) -> LedgerEntry:
    [uid] = [want.uid for want in wanted_of(RUN.id, config) if want.step == step]
    return LedgerEntry(uid, step, "zero_shot", state, None, 1, 0.0)


def test_each_evaluation_without_a_result_is_told_by_where_it_stands(config: Config) -> None:
    entry = entry_of(config, 400, "submitted")
    found = kinds(evidence(config, ledger={entry.key: entry}, last_checkpoint=400))
    assert "Evaluation under way: zero_shot at step 400" in found
    assert "1 evaluation to come" in found
    assert not [kind for kind in found if "step 200" in kind]
    assert "Evaluation not started: zero_shot at step 600" in kinds(evidence(config, last_checkpoint=600))


def test_done_without_a_result_counts_as_lost(config: Config) -> None:
    entry = entry_of(config, 400, "done")
    over = evidence(config, "succeeded", ledger={entry.key: entry}, agent_is_alive=False)
    (note,) = [note for note in notes(over) if "lost" in note.kind and "400" in note.kind]
    assert note.tone == "bad" and "its result file is missing" in note.lines[0]


REPLACED = [
    {"shard": "train/000001.tar", "key": f"patient_{number}", "reason": "member.checksum"}
    for number in range(9)
]


def test_samples_that_were_replaced_are_counted_with_the_first_places(config: Config) -> None:
    (note,) = [note for note in notes(evidence(config, replaced=REPLACED * 3)) if "replaced" in note.kind]
    assert (note.tone, note.kind) == ("warn", "9 bad samples replaced while training, 27 times in all")
    assert note.lines[0] == "train/000001.tar, key patient_0 (member.checksum)"
    assert note.lines[-1] == "and 5 more, in replaced.rank_*.jsonl" and len(note.lines) == 5
    assert not [kind for kind in kinds(evidence(config)) if "replaced" in kind]


def test_of_private_data_only_the_number_of_replaced_samples_is_told(config: Config) -> None:
    private = config.model_copy(update={"dataset": config.dataset.model_copy(update={"private": True})})
    (note,) = [note for note in notes(evidence(private, replaced=REPLACED)) if "replaced" in note.kind]
    assert note.kind.startswith("9 bad samples") and "patient" not in str(note)


def test_the_gravest_note_comes_first(config: Config) -> None:
    findings = [
        {"code": "a", "severity": "info"},
        {"code": "b", "severity": "warning"},
        {"code": "c", "severity": "error"},
    ]
    found = notes(evidence(config, "failed", findings=findings), [Note("warn", "more")])
    tones = [note.tone for note in found]
    assert tones == sorted(tones, key=["bad", "warn", ""].index)
    assert found[0].kind == "The run failed" and found[0].lines[0] == "because"
    assert "more" in [note.kind for note in found]


def test_many_notes_do_not_bury_the_page(config: Config) -> None:
    many = config.model_copy(
        update={"train": config.train and config.train.model_copy(update={"steps": 100_000})}
    )
    (note,) = [note for note in notes(evidence(many)) if "to come" in note.kind]
    assert note.kind == "499 evaluations to come" and note.lines[0].endswith("zero_shot at step 1,000, …")
    found = notes(evidence(config, findings=[{"code": "a"}] * 1000))
    assert len(found) == 41 and "more notes" in found[-1].kind


def test_a_config_without_evaluations_misses_none(config: Config) -> None:
    alone = config.model_copy(update={"evaluate": None})
    assert not [kind for kind in kinds(evidence(alone, "succeeded", results=[])) if "Evaluation" in kind]


def test_a_config_in_epochs_expects_nothing_yet(config: Config) -> None:
    assert config.train is not None
    train = config.train.model_copy(update={"steps": None, "epochs": 3})
    assert not [
        kind for kind in kinds(evidence(config.model_copy(update={"train": train}))) if "Evaluation" in kind
    ]


def test_a_failure_stays_told_when_the_run_is_only_evaluated_again(config: Config) -> None:
    made = evidence(
        config, "failed", findings=[{"code": "loss.nonfinite", "severity": "error", "attempt": 1}]
    )
    assert made.record is not None
    lives = [("failed", 1), ("evaluated", 2), (None, 3)]
    attempts = [
        Attempt(
            started=number,
            ended=None if outcome is None else number + 1,
            outcome=outcome,
            host="",
            boot_id="",
            pid=1,
            pid_started=1.0,
            job=None,
            code_digest="",
            versions={},
        )
        for outcome, number in lives
    ]
    evaluated = replace(made, record=made.record.having(attempts=attempts, goal="evaluate"))
    assert "loss.nonfinite (error)" in kinds(evaluated)
    assert any("attempts/1/logs" in line for note in notes(evaluated) for line in note.lines)
    resumed = replace(made, record=made.record.having(attempts=attempts))
    assert "loss.nonfinite (error)" not in kinds(resumed)
