"""Two ranks train the digits by gloo: killed, stopped and fed a bad sample, they end together."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.core import config as configs
from tasks.core.files import read_json, write_atomic
from tasks.dataset.version import versions
from tasks.runs import phases
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.environment import Meeting
from tasks.runs.folder import RunFolder
from tests.training.helpers import (
    exit_codes,
    is_beyond_checkpoint,
    logs,
    make_run,
    model_bytes,
    rows,
    train_here,
    training_on,
    wait_for,
)

pytestmark = pytest.mark.system
LAST = 60
SHORT = (f"train.steps={LAST}", "train.checkpoint_every=20", "evaluate.every=20")
IN_SHARDS = ("engine.train={kind: local, ranks: 2, shard: true}", "train.ema=0.9", "train.grad_clip=1")
NOISE = 3e-4
"""How far a weight of the tiny model, and a loss, may be off after 60 steps of AdamW whose sums were rounded
differently: ten times what was seen of weights (3e-5), and far more than of losses (5e-7)."""


@pytest.fixture(scope="module")
def together(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A training on two ranks that nobody disturbed."""
    run = make_run(digits_dataset, tmp_path_factory.mktemp("together"), *SHORT)
    finish(run, 2)
    return run


def finish(run: RunFolder, count: int) -> None:
    with training_on(run, count) as ranks:
        assert exit_codes(run, ranks) == [0] * count, logs(run)


def until(condition: Callable[[RunFolder], bool], run: RunFolder, count: int) -> None:
    """Train until it holds, then end all ranks by SIGKILL."""
    with training_on(run, count) as ranks:
        wait_for(lambda: condition(run), ranks[0], run, "rank_0.log")
        assert not run.checkpoint(LAST).exists(), "it was too fast to be disturbed"


def assert_same_weights(run: RunFolder, other: RunFolder, tolerance: float) -> None:
    mine, theirs = (load_file(one.checkpoint(LAST) / "model.safetensors") for one in (run, other))
    worst = max(float((mine[name] - value).abs().max()) for name, value in theirs.items())
    assert worst <= tolerance, worst
    for kind, name in (("train", "train/loss"), ("val", "val/loss")):
        found, expected = rows(run, kind), rows(other, kind)
        assert list(found) == list(expected)
        for step, row in expected.items():
            assert found[step][name] == pytest.approx(row[name], abs=tolerance), step


def test_two_ranks_train_as_one_does(digits_dataset: Path, tmp_path: Path, together: RunFolder) -> None:
    alone = make_run(digits_dataset, tmp_path, *SHORT)
    train_here(alone)
    assert_same_weights(together, alone, NOISE)
    said = [phases.read_phase(together.phase(rank)) for rank in (0, 1)]
    assert [(phase.phase, phase.step) for phase in said if phase is not None] == [("end", LAST)] * 2
    assert not list(together.path.glob("metrics.*.jsonl")), "the first rank writes what all have measured"
    for row in rows(together, "train").values():
        for part in ("step_s", "data_wait", "forward_s", "backward_s", "update_s"):
            assert 0 <= row[f"train/{part}"] <= row[f"train/{part}_worst"]
        assert sum(row[f"train/{part}_s"] for part in ("forward", "backward", "update")) < row["train/step_s"]
    saved = rows(together, "save")
    assert LAST in saved and 0 < saved[LAST]["train/save_s"] <= saved[LAST]["train/save_s_worst"]
    assert not any(key.endswith("_worst") for row in rows(alone, "train").values() for key in row)
    state = torch.load(together.checkpoint(LAST) / "state.pt", weights_only=True)
    (other,) = state["ranks"]
    assert not torch.equal(other["cpu"], state["random"]["cpu"]), "they would drop out the same"


@pytest.mark.proof
def test_killed_ranks_end_in_the_same_bits(digits_dataset: Path, tmp_path: Path, together: RunFolder) -> None:
    run = make_run(digits_dataset, tmp_path, *SHORT, workers=1)
    until(is_beyond_checkpoint, run, 2)
    finish(run, 2)
    assert model_bytes(run, LAST) == model_bytes(together, LAST)
    assert_same_weights(run, together, 0.0)
    assert "from step 0" in logs(run) and "from step 20" in logs(run)


@pytest.mark.proof
def test_four_ranks_go_on_in_the_same_bits(digits_dataset: Path, tmp_path: Path) -> None:
    """The order of a sum of more than two matters, and DDP changes it after a process's first step."""
    few = ("train.steps=24", "train.checkpoint_every=12", "evaluate.every=12")
    run = make_run(digits_dataset, tmp_path, *few)
    finish(run, 4)
    again = RunFolder(tmp_path / "again" / run.name)
    shutil.copytree(run.path, again.path, symlinks=True)
    shutil.rmtree(again.checkpoint(24))
    finish(again, 4)
    assert model_bytes(again, 24) == model_bytes(run, 24)


@pytest.mark.proof
def test_another_number_of_ranks_goes_on_and_says_so(
    digits_dataset: Path, tmp_path: Path, together: RunFolder
) -> None:
    run = make_run(digits_dataset, tmp_path, *SHORT)
    until(is_beyond_checkpoint, run, 2)
    finish(run, 1)
    assert "is of 2 ranks, and goes on with 1" in logs(run)
    assert_same_weights(run, together, NOISE)


@pytest.fixture(scope="module")
def in_shards(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The same with weights in shards, their average, and clipped gradients."""
    run = make_run(digits_dataset, tmp_path_factory.mktemp("shards"), *SHORT, *IN_SHARDS)
    finish(run, 2)
    return run


def test_weights_in_shards_train_as_whole_ones(
    digits_dataset: Path, tmp_path: Path, in_shards: RunFolder
) -> None:
    alone = make_run(digits_dataset, tmp_path, *SHORT, *IN_SHARDS[1:])
    train_here(alone)
    assert_same_weights(in_shards, alone, NOISE)
    clipped = [row["train/grad_norm"] for row in rows(alone, "train").values()]
    assert max(clipped) > 1
    for step, row in rows(in_shards, "train").items():
        assert row["train/grad_norm"] == pytest.approx(
            rows(alone, "train")[step]["train/grad_norm"], rel=1e-3
        )
    assert (in_shards.checkpoint(LAST) / "parts" / ".metadata").exists()


@pytest.mark.proof
def test_killed_ranks_in_shards_end_in_the_same_bits(
    digits_dataset: Path, tmp_path: Path, in_shards: RunFolder
) -> None:
    run = make_run(digits_dataset, tmp_path, *SHORT, *IN_SHARDS, workers=1)
    until(is_beyond_checkpoint, run, 2)
    finish(run, 2)
    assert model_bytes(run, LAST) == model_bytes(in_shards, LAST)
    assert_same_weights(run, in_shards, 0.0)
    assert "from step 0" in logs(run) and "from step 20" in logs(run)


@pytest.mark.proof
@pytest.mark.parametrize(
    ("before", "after"), [((2, True), (4, True)), ((2, True), (1, False)), ((2, False), (2, True))]
)
def test_a_checkpoint_is_taken_up_by_another_number_of_ranks_in_shards_or_not(
    digits_dataset: Path,
    tmp_path: Path,
    in_shards: RunFolder,
    before: tuple[int, bool],
    after: tuple[int, bool],
) -> None:
    run = make_run(digits_dataset, tmp_path, *SHORT, *IN_SHARDS)
    set_shards(run, *before)
    until(is_beyond_checkpoint, run, before[0])
    set_shards(run, *after)
    finish(run, after[0])
    assert_same_weights(run, in_shards, NOISE)


@pytest.mark.proof
def test_weights_in_shards_that_it_starts_from_are_the_checkpoint_of_step_0(
    digits_dataset: Path, tmp_path: Path, together: RunFolder
) -> None:
    """Of which the optimizer holds nothing yet; a start from it is the start."""
    weights = together.checkpoint(LAST) / "model.safetensors"
    tuned = f"train.model={{name: tarmac/digits, pretrained: {weights}}}"
    run = make_run(digits_dataset, tmp_path, *SHORT, tuned, IN_SHARDS[0])
    finish(run, 2)
    assert [one.step for one in list_checkpoints(run)] == [0, 20, 40, LAST]
    assert model_bytes(run, 0) == weights.read_bytes()
    last = model_bytes(run, LAST)
    for step in (20, 40, LAST):
        shutil.rmtree(run.checkpoint(step))
    finish(run, 2)
    assert model_bytes(run, LAST) == last


def set_shards(run: RunFolder, count: int, shard: bool) -> None:
    config = configs.reload(run.config)
    train = config.engine.train.model_copy(update={"ranks": count, "shard": shard})
    engine = config.engine.model_copy(update={"train": train})
    write_atomic(run.config, configs.dump(config.model_copy(update={"engine": engine})))


@pytest.mark.proof
def test_a_stop_ends_all_at_one_step(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path, *SHORT)
    with training_on(run, 2) as ranks:
        wait_for(lambda: is_beyond_checkpoint(run), ranks[0], run, "rank_0.log")
        run.stop.write_text("a test asks for it")
        assert exit_codes(run, ranks) == [0, 0], logs(run)
    said = [phases.read_phase(run.phase(rank)) for rank in (0, 1)]
    steps = {phase.step for phase in said if phase is not None and phase.phase == "end"}
    assert steps == {list_checkpoints(run)[-1].step}


def test_a_bad_sample_of_one_rank_ends_all(digits_dataset: Path, tmp_path: Path) -> None:
    version = tmp_path / "dataset" / "versions" / versions.resolve(digits_dataset).name
    shutil.copytree(versions.resolve(digits_dataset), version)
    for shard in (version / "train").glob("*.tar"):
        content = bytearray(shard.read_bytes())
        content[600] ^= 1
        shard.unlink()
        shard.write_bytes(content)
    run = make_run(version, tmp_path, *SHORT)
    with training_on(run, 2) as ranks:
        assert exit_codes(run, ranks) == [1, 1]
    first = Meeting(run.meeting(1)).first_failed
    assert first is not None
    texts = [(run.path / f"rank_{rank}.log").read_text() for rank in (first, 1 - first)]
    assert "tarmac repair" in texts[0] and "Traceback" not in texts[0]
    assert "error: another rank has failed" in texts[1] and "Traceback" not in texts[1]


def test_a_killed_rank_ends_the_others(digits_dataset: Path, tmp_path: Path) -> None:
    """Also without an agent: what it was connected to is closed."""
    run = make_run(digits_dataset, tmp_path, *SHORT)
    with training_on(run, 2) as ranks:
        wait_for(lambda: is_beyond_checkpoint(run), ranks[0], run, "rank_0.log")
        os.killpg(ranks[1].pid, signal.SIGKILL)
        codes = exit_codes(run, ranks)
    assert codes[1] == -signal.SIGKILL and codes[0] == 1
    assert read_json(run.checkpoint(20) / "meta.json")["step"] == 20
