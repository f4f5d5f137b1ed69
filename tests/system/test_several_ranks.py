"""A training on two ranks with its agent: whatever becomes of one rank, all end, and the next start goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.core.files import read_json
from tasks.core.process import Identity
from tasks.runs import phases
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.folder import RunFolder
from tasks.supervision import launch
from tasks.supervision.status import look_at_run
from tests.training.helpers import make_run, model_bytes

pytestmark = pytest.mark.system
LAST = 200
RANKS = (
    "engine.train.ranks=2",
    f"train.steps={LAST}",
    "train.checkpoint_every=20",
    "evaluate=null",
    "track.mode=disabled",
)
PROMISED_S = 60.0


def ranks_of(run: RunFolder, attempt: int) -> list[Identity]:
    paths = sorted((run.attempts / str(attempt)).glob("rank_*.json"))
    return [Identity.from_json(read_json(path)) for path in paths]


def train_beyond_a_checkpoint(run: RunFolder) -> None:
    """Until all ranks have taken a step since the newest checkpoint, at which the next attempt goes on."""
    saved = len(list_checkpoints(run))
    launch.start_or_adopt(run)
    deadline = time.monotonic() + 300
    while True:
        found = list_checkpoints(run)
        said = phases.read_phase(run.phase(1))
        if len(found) > saved and said is not None and said.step > found[-1].step:
            return
        assert time.monotonic() < deadline and look_at_run(run).state in ("queued", "running")
        time.sleep(0.05)


def ended_by(run: RunFolder, attempt: int, rank: int, sign: signal.Signals) -> str:
    """What is told when this rank gets the signal; nothing of the training is left by then."""
    train_beyond_a_checkpoint(run)
    ranks = ranks_of(run, attempt)
    os.kill(ranks[rank].pid, sign)
    began = time.monotonic()
    with pytest.raises(DataError) as caught:
        launch.wait_for_training(run)
    assert time.monotonic() - began < PROMISED_S
    assert not any(identity.is_alive() for identity in ranks)
    ended = read_json(run.exit(attempt))
    assert (ended["outcome"], ended["rank"], ended["ranks"]) == ("failed", rank, 2)
    assert ended["reason"] in str(caught.value)
    return str(ended["reason"])


@pytest.mark.proof
def test_ranks_that_are_killed_and_stopped_end_in_the_same_bits(digits_dataset: Path, tmp_path: Path) -> None:
    undisturbed = make_run(digits_dataset, tmp_path / "undisturbed", *RANKS)
    launch.start_or_adopt(undisturbed)
    launch.wait_for_training(undisturbed)

    run = make_run(digits_dataset, tmp_path / "disturbed", *RANKS, workers=1)
    reason = ended_by(run, 1, 1, signal.SIGKILL)
    assert reason.startswith("rank 1 of 2: the training process was killed by SIGKILL at step")
    reason = ended_by(run, 2, 0, signal.SIGSTOP)
    assert reason.startswith("rank 0 of 2: it was stopped, as by SIGSTOP, and the others waited for it")
    findings = [json.loads(line) for line in run.findings.read_text().splitlines()]
    assert [(one["code"], one["where"]["rank"]) for one in findings] == [
        ("process.gone", 1),
        ("collective.desync", 0),
    ]
    launch.start_or_adopt(run)
    launch.wait_for_training(run)
    assert look_at_run(run).state == "succeeded" and read_json(run.exit(3))["ranks"] == 2
    assert model_bytes(run, LAST) == model_bytes(undisturbed, LAST)
