from pathlib import Path
from typing import Any

import pytest

from tasks.core.units import SPACE
from tasks.reporting.portrait import portrait
from tasks.runs.folder import RunFolder
from tasks.runs.identity import DataRef
from tasks.runs.record import Attempt, RunRecord

RUN = RunFolder(Path("runs/digits-clip-0123456789ab"))
IDENTITY = {
    "recipe": "clip", "model": {"name": "ViT-B-32", "force_quick_gelu": True}, "batch_size": 64, "steps": 600,
    "lr": 1.25e-6, "warmup": 0.03, "seed": 0, "precision": "bf16", "digest": "0123456789ab" + "0" * 52,
}  # fmt: skip


def attempt(started: float, ended: float | None, outcome: str | None) -> Attempt:
    return Attempt(
        started=started, ended=ended, host="n2", boot_id="b", pid=1, pid_started=0.0, job=None, code_digest="77ab",
        versions={"torch": "2.15.0", "numpy": "2.4"}, outcome=outcome,
    )  # fmt: skip


def make_record(**changes: object) -> RunRecord:
    values = {"id": RUN.id, "name": "digits-clip", "identity": IDENTITY, "data": [], "state": "running"}
    return RunRecord.model_validate({**values, **changes})


def test_what_made_the_weights() -> None:
    data = [
        DataRef(dataset="/d/a", version="9c41", weight=0.8),
        DataRef(dataset="/d/b", version="77aa", weight=0.2),
    ]
    facts = dict(portrait(RUN, make_record(data=data)).facts)
    assert facts["Model"] == "clip: ViT-B-32, force_quick_gelu True"
    assert facts["Data"] == "/d/a, version 9c41, weight 0.8; /d/b, version 77aa, weight 0.2"
    assert (
        facts["Learning rate"]
        == f"1.25e-06 after a warm-up of 3.0{SPACE}% of the steps, then falling as a cosine"
    )
    assert facts["Seed"] == "0", "a seed of 0 is a seed"
    assert "Weight decay" not in facts


def test_a_model_of_blocks_and_words_is_written_as_in_its_config() -> None:
    model = {
        "name": "tarmac/digits",
        "teachers": [{"width": 48, "logit_scale": 20.0}, {"width": 32, "logit_scale": 20.0}],
        "loss_weights": {"contrastive": 0.25},
        "command": ["python", "-m", "open_clip_train.main", "--aug-cfg", "scale=(0.4, 1)"],
        "shape": [8, 16, 16],
    }
    made = make_record()
    found = portrait(RUN, made.having(identity={**made.identity, "model": model})).facts
    assert dict(found)["Model"] == (
        "clip: tarmac/digits, "
        "teachers [{width: 48, logit_scale: 20.0}, {width: 32, logit_scale: 20.0}], "
        "loss_weights {contrastive: 0.25}, "
        "command python -m open_clip_train.main --aug-cfg 'scale=(0.4, 1)', "
        "shape [8, 16, 16]"
    )


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"lr": 1e-3, "warmup": 0, "schedule": "constant"}, "0.001, constant"),
        (
            {"lr": 1e-3, "warmup": 5, "schedule": "constant"},
            "0.001 after a warm-up of 5 steps, then constant",
        ),
        ({"lr": {"vision": 1e-5, "text": 1e-4}, "warmup": 0}, "vision 1e-05, text 0.0001"),
    ],
)
def test_the_learning_rate_is_told_as_it_went(fields: dict[str, Any], says: str) -> None:
    made = make_record()
    found = portrait(RUN, made.having(identity={**made.identity, **fields})).facts
    assert dict(found)["Learning rate"] == says


def test_the_time_of_the_attempts_that_ended() -> None:
    attempts = [attempt(0.0, 60.0, "lost"), attempt(100.0, None, None)]
    shown = portrait(RUN, make_record(attempts=attempts))
    assert f"ran 60{SPACE}s in 2 attempts" in shown.summary
    assert shown.versions == [("numpy", "2.4"), ("torch", "2.15.0")]


def test_a_record_that_knows_little_and_none_at_all() -> None:
    assert portrait(RUN, make_record(identity={})).facts == [("Run", RUN.id)]
    missing = portrait(RUN, None)
    assert (missing.id, missing.state, missing.sign) == (RUN.id, "unknown", "·")
