"""Success is judged by evidence: each missing piece of it is a failure with its own words and code."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from tasks.runs.stop import Stop
from tasks.supervision.ranks.success import TrainingEnd, exit_of, judge_end

GOOD = TrainingEnd(exit_code=0, step=600, last_step=600, loss=0.2, checkpoint=600, log_tail=["step 600"])


def test_all_of_the_evidence_is_a_success() -> None:
    verdict = judge_end(GOOD)
    assert (verdict.state, verdict.reason, list(verdict.findings)) == ("succeeded", "", [])


@pytest.mark.parametrize(
    ("changes", "codes", "reason"),
    [
        ({"step": 0, "loss": None}, ["run.no_batches"], "saw no batch"),
        ({"loss": math.nan}, ["loss.nonfinite"], "loss was not finite at step 600"),
        ({"loss": None}, ["unknown"], "no loss is recorded"),
        ({"exit_code": -9, "step": 1, "loss": None}, ["process.gone"], "killed by SIGKILL at step 1"),
        ({"step": 599}, ["unknown"], "ended by itself at step 599 of 600"),
        ({"checkpoint": 400}, ["unknown"], "newest sound one is of step 400"),
        ({"checkpoint": None}, ["unknown"], "missing or torn: none is sound"),
        ({"exit_code": 1, "step": 9}, ["unknown"], "exit code 1: step 600"),
        ({"exit_code": -9, "step": 9}, ["process.gone"], "killed by SIGKILL at step 9"),
        ({"exit_code": -11, "step": 9}, ["process.gone"], "killed by SIGSEGV"),
        ({"exit_code": 1, "step": 0}, ["run.no_batches"], "saw no batch"),
    ],
)
def test_any_missing_piece_is_a_failure(changes: dict[str, object], codes: list[str], reason: str) -> None:
    verdict = judge_end(replace(GOOD, **changes))  # type: ignore[arg-type]
    assert verdict.state == "failed" and reason in verdict.reason
    assert [finding.code for finding in verdict.findings] == codes
    assert all(finding.severity == "error" and finding.remedy for finding in verdict.findings)


def test_a_kill_for_want_of_memory_names_what_to_lower() -> None:
    """Started again as it is it would be killed again."""
    killed = replace(GOOD, exit_code=-9, step=9, levers="train.micro_batch (unset) or train.model.max_side")
    (finding,) = judge_end(replace(killed, oom_kills=1)).findings
    assert finding.code == "memory.exceeded"
    assert finding.remedy.startswith("lower train.micro_batch (unset) or train.model.max_side, or take")
    assert "memory ran out at step 9, and the kernel killed" in judge_end(replace(killed, oom_kills=1)).reason
    (unsure,) = judge_end(killed).findings
    assert unsure.code == "process.gone" and "lower train.micro_batch (unset) or" in unsure.remedy
    (other,) = judge_end(replace(killed, exit_code=-11, oom_kills=1)).findings
    assert other.code == "process.gone" and "lower" not in other.remedy


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("error: a loader worker (pid 41) of /data/train was killed by SIGKILL; most often", "worker.killed"),
        ("error: a loader worker (pid 41) of /data/train ended with exit code 3; its log", "worker.crashed"),
        ("DataError: Caught DataError in DataLoader worker process 1.", "worker.crashed"),
        ("error: train/000007.tar row 2, key 'a', member txt: its CRC32C is not that of", "sample.poison"),
        ("error: /d/train/000007.tar, key 'a': the picture is all black; see", "sample.poison"),
        ("error: train/000007.tar row 2: No such file or directory; `tarmac repair", "sample.poison"),
        ("error: /d/train: 9 samples of an epoch are bad, and loader.bad_budget lets 8 be", "sample.poison"),
        ("error: the loss is nan at step 20, so the weights are lost; lower train.lr", "loss.nonfinite"),
        ("error: the validation loss is -inf at step 20: the weights are finite, and", "loss.nonfinite"),
        ("error: the weights are lost after step 20: visual.proj is not finite; they", "loss.nonfinite"),
        ("OSError: [Errno 28] No space left on device: '/runs/a/metrics.jsonl'", "disk.too_small"),
        ("error: the disk of /runs/a is full; make room and run again: what is done", "disk.too_small"),
        (
            "error: /runs/a/step_00000002: cannot be written: MemoryError; memory ran out while saving",
            "memory.exceeded",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "cuda.oom"),
    ],
)
def test_what_a_dying_training_says_is_understood(line: str, code: str) -> None:
    verdict = judge_end(replace(GOOD, exit_code=1, step=20, checkpoint=None, log_tail=["Traceback", line]))
    assert [finding.code for finding in verdict.findings] == [code]
    assert verdict.findings[0].evidence["last_line"] == line.strip()


POISON = (
    "error: train/000007.tar row 2, key 'a', member txt: its CRC32C is not that of the index; `tarmac repair"
)
KILLED = "error: a loader worker (pid 41) of /data/train was killed by SIGKILL"


@pytest.mark.parametrize(("line", "code"), [(POISON, "sample.poison"), (KILLED, "worker.killed")])
def test_that_no_batch_came_is_no_cause_where_another_is_known(line: str, code: str) -> None:
    verdict = judge_end(replace(GOOD, exit_code=1, step=0, loss=None, checkpoint=None, log_tail=[line]))
    assert [finding.code for finding in verdict.findings] == [code]
    assert "no batch" not in verdict.reason


def test_what_is_printed_after_a_traceback_does_not_hide_its_error() -> None:
    tail = [
        "Traceback (most recent call last):",
        '  File "a.py", line 1',
        "RuntimeError: no such model",
        "I1 hits: 0",
    ]
    verdict = judge_end(replace(GOOD, exit_code=1, step=0, loss=None, checkpoint=None, log_tail=tail))
    assert verdict.reason == "the training saw no batch (RuntimeError: no such model)"
    ended = replace(GOOD, exit_code=1, step=5, checkpoint=None, log_tail=[*tail[:-1], "error: no room"])
    assert "error: no room" in judge_end(ended).reason
    earlier = replace(GOOD, exit_code=1, step=5, checkpoint=None, log_tail=["ValueError: x", "gave up"])
    assert "gave up" in judge_end(earlier).reason


def test_the_last_line_is_quoted_once() -> None:
    tail = ["DataError: Caught DataError in DataLoader worker process 1.", POISON]
    verdict = judge_end(replace(GOOD, exit_code=1, step=5, checkpoint=None, log_tail=tail))
    assert [finding.code for finding in verdict.findings] == ["worker.crashed", "sample.poison"]
    assert (
        verdict.reason.endswith(f"bad data ended it at step 5 ({POISON})")
        and verdict.reason.count(POISON) == 1
    )


def test_a_loss_that_is_not_finite_is_reported_once_and_written_as_null() -> None:
    line = "error: the loss is nan at step 7, so the weights are lost; lower train.lr"
    seen = replace(GOOD, exit_code=1, step=7, loss=math.nan, checkpoint=None, log_tail=[line])
    verdict = judge_end(seen)
    assert [finding.code for finding in verdict.findings] == ["loss.nonfinite"]
    assert '"loss": null' in json.dumps(exit_of(seen, verdict, 0.0, 1.0), allow_nan=False)


def test_a_warning_of_a_full_disk_is_no_cause_of_another_end() -> None:
    line = "2026-01-01 WARNING rank_0.json: no sign of life ([Errno 28] No space left on device)"
    verdict = judge_end(replace(GOOD, exit_code=-9, step=20, log_tail=[line]))
    assert [finding.code for finding in verdict.findings] == ["process.gone"]


def test_a_sample_that_was_replaced_is_no_cause_of_another_end() -> None:
    line = "2026-01-01 WARNING replaced by b: train/000007.tar row 2, key 'a', member txt (member.checksum)"
    verdict = judge_end(replace(GOOD, exit_code=-9, step=20, log_tail=[line, "step 20"]))
    assert [finding.code for finding in verdict.findings] == ["process.gone"]


def test_all_causes_are_told_and_not_only_the_first() -> None:
    killed = "error: a loader worker (pid 41) of /data/train was killed by SIGKILL"
    verdict = judge_end(replace(GOOD, exit_code=-6, step=7, loss=math.nan, log_tail=[killed]))
    assert [finding.code for finding in verdict.findings] == [
        "loss.nonfinite",
        "worker.killed",
        "process.gone",
    ]


BY_USER = Stop("user", "cancelled by the user", "kim on n1, process 41", 1.0)


def test_a_stop_is_no_failure_and_records_who_asked_and_at_which_step() -> None:
    stopped = replace(GOOD, step=120, checkpoint=120, stop=BY_USER)
    verdict = judge_end(stopped)
    assert (verdict.state, verdict.reason) == ("cancelled", "cancelled by the user, at step 120 of 600")
    recorded = exit_of(stopped, verdict, 1.0, 2.0)["stop"]
    assert recorded == {"who": "user", "reason": BY_USER.reason, "by": BY_USER.by, "at": 1.0}
    deaf = judge_end(replace(stopped, exit_code=-9, is_forced=True))
    assert (deaf.state, list(deaf.findings)) == ("cancelled", [])
    assert "did not obey in time and was ended by SIGKILL" in deaf.reason


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"exit_code": -9}, "process.gone", "killed by SIGKILL at step 120"),
        ({"exit_code": 1, "loss": math.nan}, "loss.nonfinite", "the loss was not finite at step 120"),
        ({"loss": math.nan}, "loss.nonfinite", "the loss was not finite at step 120"),
        ({"exit_code": -9, "is_forced": True, "loss": math.nan}, "loss.nonfinite", "by SIGKILL"),
        ({"exit_code": 1, "log_tail": [POISON]}, "sample.poison", "bad data ended it"),
        ({"exit_code": 1, "log_tail": [POISON], "step": 0, "loss": None}, "sample.poison", "bad data"),
        ({"exit_code": 3}, "unknown", "exit code 3"),
        ({"exit_code": 3, "step": 0, "loss": None}, "unknown", "exit code 3"),
    ],
)
def test_a_stop_hides_nothing_that_went_wrong(changes: dict[str, object], code: str, message: str) -> None:
    seen = replace(GOOD, step=120, checkpoint=120, stop=BY_USER)
    verdict = judge_end(replace(seen, **changes))  # type: ignore[arg-type]
    assert verdict.state == "failed" and [finding.code for finding in verdict.findings] == [code]
    assert message in verdict.reason and "it was asked to stop: cancelled by the user" in verdict.reason


def test_a_stop_before_the_first_batch_is_no_failure() -> None:
    early = replace(GOOD, step=0, loss=None, checkpoint=None, stop=BY_USER)
    assert judge_end(early).state == "cancelled" and judge_end(early).findings == ()


def test_a_stop_that_came_too_late_changes_nothing() -> None:
    assert judge_end(replace(GOOD, stop=BY_USER)).state == "succeeded"


def test_a_stop_before_the_last_checkpoint_was_written_is_no_failure() -> None:
    stopped = judge_end(replace(GOOD, checkpoint=400, stop=BY_USER))
    assert (stopped.state, list(stopped.findings)) == ("cancelled", [])
