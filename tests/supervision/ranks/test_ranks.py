"""Several ranks beside one agent: which of them is the cause of an end, and that no other stays behind."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.files import read_json
from tasks.core.process import Identity
from tasks.runs.environment import rank_environment
from tasks.runs.folder import RunFolder
from tasks.supervision import launch
from tasks.supervision.ranks.success import RankEnd, causes_of, stood_still
from tasks.supervision.status import look_at_run
from tests.supervision.fakes import make_config, make_run

KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    ("ends", "first_failed", "causes"),
    [
        ([RankEnd(0, 0), RankEnd(1, 0)], None, [0]),
        ([RankEnd(0, 1), RankEnd(1, KILLED)], 0, [1]),
        ([RankEnd(0, 1), RankEnd(1, 1)], 1, [1]),
        ([RankEnd(0, 1), RankEnd(1, 1)], None, [0, 1]),
        ([RankEnd(0, KILLED), RankEnd(1, KILLED), RankEnd(2, 1)], None, [0, 1]),
        ([RankEnd(0, -15, True), RankEnd(1, KILLED, True, True)], None, [1]),
        ([RankEnd(0, 1), RankEnd(1, -15, True)], None, [1]),
        ([RankEnd(0, 1), RankEnd(1, -15, True)], 0, [0]),
        ([RankEnd(0, -15, True), RankEnd(1, -15, True)], None, [0, 1]),
        ([RankEnd(0, -15, True), RankEnd(1, KILLED)], None, [1]),
    ],
)
def test_the_first_failure_is_distinguished_from_its_consequences(
    ends: list[RankEnd], first_failed: int | None, causes: list[int]
) -> None:
    assert [end.rank for end in causes_of(ends, first_failed)] == causes


def test_a_rank_stood_still_only_where_others_left_it() -> None:
    assert stood_still(RankEnd(1, -15, True), [RankEnd(0, 1), RankEnd(1, -15, True)]) is not None
    assert stood_still(RankEnd(1, -15, True), [RankEnd(0, -15, True), RankEnd(1, -15, True)]) is None
    assert stood_still(RankEnd(1, KILLED), [RankEnd(0, 1), RankEnd(1, KILLED)]) is None


def finish(run: RunFolder) -> None:
    launch.start_or_adopt(run)
    launch.wait_for_training(run)


def ranks_of(run: RunFolder) -> list[Identity]:
    return [Identity.from_json(read_json(path)) for path in sorted(run.attempts.glob("1/rank_*.json"))]


def several(tmp_path: Path, **behaviour: Any) -> RunFolder:
    quick = {"FOLLOW_S": 1.0, "STOPPED_S": 1.0, "step_s": 0.05}
    return make_run(tmp_path, {**quick, **behaviour}, engine={"train": {"ranks": 2}})


@pytest.mark.parametrize(
    ("does", "code", "reason", "signal_name"),
    [
        (
            "SIGKILL",
            "process.gone",
            "rank 1 of 2: the training process was killed by SIGKILL at step",
            "SIGKILL",
        ),
        pytest.param(
            "SIGSTOP",
            "collective.desync",
            "rank 1 of 2: it was stopped, as by SIGSTOP",
            "SIGKILL",
            marks=pytest.mark.proof,
        ),
        pytest.param(
            "fail",
            "sample.poison",
            "rank 1 of 2: bad data ended it at step",
            None,
            marks=pytest.mark.proof,
        ),
    ],
)
def test_one_rank_ends_all_and_is_named(
    tmp_path: Path, does: str, code: str, reason: str, signal_name: str | None
) -> None:
    run = several(tmp_path, odd_rank=1, does=does, step_s=0.1, deaf=True)
    began = time.monotonic()
    with pytest.raises(DataError, match=reason) as error:
        finish(run)
    assert time.monotonic() - began < 60
    assert not any(rank.is_alive() for rank in ranks_of(run))
    ended = read_json(run.exit(1))
    assert (ended["rank"], ended["ranks"], ended["signal"]) == (1, 2, signal_name)
    (finding,) = [json.loads(line) for line in run.findings.read_text().splitlines()]
    assert finding["code"] == code and finding["where"] == {"rank": 1}
    assert "rank_1.log" in str(error.value)
    (run.path / "fake.json").write_text("{}")
    finish(run)
    assert look_at_run(run).state == "succeeded" and read_json(run.exit(2))["ranks"] == 2


def test_a_rank_does_not_inherit_the_rank_variables_of_its_agent(tmp_path: Path) -> None:
    train = make_config(tmp_path).train
    assert train is not None
    theirs = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "MASTER_PORT": "1",
        "TORCHELASTIC_RUN_ID": "x",
        "PET_NNODES": "2",
    }
    of_task = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
    of_job = {"SLURM_JOB_ID": "7", "SLURM_CONF": "/etc/slurm.conf", "HOME": "/h"}
    found = rank_environment(train, {**theirs, **of_task, **of_job})
    assert not {*theirs, *of_task} & set(found) and of_job.items() <= found.items()


@pytest.mark.parametrize(
    ("engine", "train", "message"),
    [
        ({"ranks": 3}, {}, "train.batch_size: 4 samples cannot be divided evenly among 3 ranks"),
        ({"gpus": 2, "ranks": 2}, {}, "gpus and ranks"),
        ({"ranks": 2}, {"micro_batch": 2}, "train.micro_batch: has an effect only below a rank's part"),
    ],
)
def test_a_batch_that_the_ranks_cannot_share_evenly_is_refused(
    tmp_path: Path, engine: dict[str, Any], train: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_config(tmp_path, engine={"train": engine}, train=train)


def test_more_gpus_than_there_are_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = make_run(tmp_path, {}, engine={"train": {"gpus": 2}})
    with pytest.raises(DataError, match="2 GPUs are asked for, but there are 0"):
        finish(run)
