from pathlib import Path

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


def test_every_attempt_and_the_time_of_those_that_ended() -> None:
    attempts = [attempt(0.0, 60.0, "lost"), attempt(100.0, None, None)]
    shown = portrait(RUN, make_record(attempts=attempts))
    assert [(line.number, line.lasted, line.outcome) for line in shown.attempts] == [
        (1, 60.0, "lost"),
        (2, None, "not over"),
    ]
    assert f"ran 60{SPACE}s in 2 attempts" in shown.summary
    assert shown.versions == [("numpy", "2.4"), ("torch", "2.15.0")]


def test_a_record_that_knows_little_and_none_at_all() -> None:
    assert portrait(RUN, make_record(identity={})).facts == [("Run", RUN.id)]
    missing = portrait(RUN, None)
    assert (missing.id, missing.state, missing.sign) == (RUN.id, "unknown", "·")
