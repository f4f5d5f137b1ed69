"""What the training promises of every recipe: alone and on two ranks, in fp32 and bf16, in parts or at once.

The examples are those of `tests.models.examples`; a recipe that stands there is trained here too.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.core.config import load_config
from tasks.core.errors import UsageError
from tasks.core.schema.recipes import RECIPES
from tasks.core.schema.recipes import RecipeClasses as Row
from tasks.dataset import examples
from tasks.dataset.building.builder import build
from tasks.models import recipes
from tasks.runs.plan import plan
from tests.conftest import ROOT
from tests.models import lengths
from tests.models.examples import TRAINED, batch_of, train_block
from tests.training.helpers import is_beyond_checkpoint, model_bytes, set_workers, start_rank, wait_for
from tests.training.recipe_steps import (
    BLOCKS,
    CONTRACT,
    DAILY,
    MORE,
    STEPS,
    TOGETHER,
    Case,
    main,
    step_of,
    take_steps,
)

NOISE = {"fp32": 3e-5, "bf16": 0.05}
"""How far the loss of a step may be off, as a share, where sums were rounded differently."""
PATIENCE_S = 600.0
CONFIGS: dict[str, tuple[str, str]] = {
    "clip": ("digits", "digits-clip.yaml"),
    "ct_clip": ("phantoms", "phantoms-ct.yaml"),
    "vlm": ("digits-chat", "digits-chat.yaml"),
    "clip_reinforced": ("reinforced", "reinforced-clip.yaml"),
}
"""By recipe: the example that it trains on, and the config."""
SHORT = ("train.steps=40", "train.checkpoint_every=10", "evaluate=null", "track.mode=disabled")
EVERY = pytest.mark.parametrize("name", [*TRAINED, lengths.NAME])
EACH_PRECISION = pytest.mark.parametrize(
    "precision", ["fp32", *(pytest.param(name, marks=pytest.mark.proof) for name in NOISE if name != "fp32")]
)


@pytest.fixture(autouse=True)
def with_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setitem(RECIPES, lengths.NAME, Row(*lengths.ROW))


def seen_by(count: int, cases: list[Case], folder: Path) -> list[dict[str, Any]]:
    """What each of so many ranks saw, by case."""
    context = multiprocessing.get_context("forkserver")  # which has imported torch already
    ranks = [context.Process(target=main, args=(folder, rank, count, cases)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(PATIENCE_S)
        rank.kill()
    assert [rank.exitcode for rank in ranks] == [0] * count
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(count)]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return seen_by(2, DAILY, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module", params=[1, 2, 4])
def some_ranks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    count: int = request.param
    cases = [case for case in CONTRACT if count > 1 or not case.shard]
    return seen_by(count, cases, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", DAILY, ids=str)
def test_loss_falls_and_is_the_same_on_two_ranks_and_in_parts(
    case: Case, two_ranks: list[dict[str, Any]]
) -> None:
    alone = take_steps(case.name, case.precision, None).losses
    assert alone[-1] < 0.9 * alone[0]
    first, second = (seen[str(case)] for seen in two_ranks)
    assert first["losses"] == pytest.approx(second["losses"]), "all ranks know the loss of all"
    for key, value in first["weights"].items():
        assert torch.equal(value, second["weights"][key]), f"{key} is another one on each rank"
    parts = take_steps(case.name, case.precision, case.micro_batch, steps=TOGETHER).losses
    for losses in (first["losses"], parts):
        assert losses == pytest.approx(alone[:TOGETHER], rel=NOISE[case.precision])


@pytest.mark.proof
@pytest.mark.parametrize("case", CONTRACT, ids=str)
def test_any_number_of_ranks_trains_as_one_and_goes_on_in_the_same_bits(
    case: Case, some_ranks: list[dict[str, Any]]
) -> None:
    if str(case) not in some_ranks[0]:
        pytest.skip("one rank has no shards")
    alone = take_steps(case.name, "fp32", None, steps=TOGETHER, **case.keys("lora")).losses
    for seen in some_ranks:
        found = seen[str(case)]
        assert found["whole"]["losses"] == pytest.approx(alone, rel=NOISE[case.precision])
        assert (found["whole"]["start"], found["resumed"]["start"]) == (0, 1)
        assert found["resumed"]["losses"] == found["whole"]["losses"][1:]
    first = some_ranks[0][str(case)]
    plain = recipes.load_recipe(train_block(case.name)).build_model().state_dict()
    assert list(first["whole"]["weights"]) == list(plain), "weights are exported under the model's names"
    for key, value in first["whole"]["weights"].items():
        assert torch.equal(value, first["resumed"]["weights"][key]), key


@EVERY
@EACH_PRECISION
def test_a_resumed_training_ends_in_the_same_bits(name: str, precision: str) -> None:
    batch = batch_of(recipes.load_recipe(train_block(name)), name, is_train=True)
    whole, broken_off = (step_of(name, precision, None) for _ in range(2))
    half = STEPS // 2
    for number in range(STEPS):
        whole(number, batch)
        if number < half:
            broken_off(number, batch)
    file = io.BytesIO()
    torch.save({**broken_off.state(), "model": broken_off.model.state_dict()}, file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    resumed = step_of(name, precision, None)
    resumed.model.load_state_dict(state["model"])
    resumed.load(state)
    for number in range(half, STEPS):
        resumed(number, batch)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[key]), key


@EACH_PRECISION
@pytest.mark.parametrize("name", BLOCKS)
def test_computing_activations_again_takes_less_memory_and_changes_no_bit(name: str, precision: str) -> None:
    plain, frugal = (take_steps(name, precision, None, checkpointing=again) for again in (False, True))
    assert plain.losses == frugal.losses
    for key, value in plain.weights.items():
        assert torch.equal(value, frugal.weights[key]), key
    assert kept_bytes(name, checkpointing=True) < 0.85 * kept_bytes(name)


def kept_bytes(name: str, **more: bool) -> int:
    """What the forward pass keeps for the backward pass of a step."""
    batch = batch_of(recipes.load_recipe(train_block(name)), name, is_train=True)
    step, kept = step_of(name, "fp32", None, **more), dict[int, int]()

    def keep(value: torch.Tensor) -> torch.Tensor:
        kept[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        return value

    weights = {parameter.untyped_storage().data_ptr() for parameter in step.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        loss = step.task(batch)
    found = sum(size for place, size in kept.items() if place not in weights)
    del loss
    return found


@pytest.mark.proof
@pytest.mark.parametrize("precision", list(NOISE))
@pytest.mark.parametrize("name", BLOCKS)
def test_compiled_blocks_train_alike_and_a_resume_ends_in_the_same_bits(name: str, precision: str) -> None:
    plain = take_steps(name, precision, None)
    for again in (False, True):
        one, other = (take_steps(name, precision, None, compile=True, checkpointing=again) for _ in range(2))
        assert one.losses[:TOGETHER] == pytest.approx(plain.losses[:TOGETHER], rel=NOISE[precision])
        assert one.losses == other.losses and one.losses[-1] < 0.9 * one.losses[0]
        for key, value in one.weights.items():
            assert torch.equal(value, other.weights[key]), key
            assert key in plain.weights, "weights are exported under the same names"


def test_a_model_without_a_transformer_refuses_what_acts_on_one() -> None:
    for key, value in {**MORE, "layer_decay": 0.5}.items():
        with pytest.raises(UsageError, match=rf"train\.{key}: has no effect on this model"):
            step_of(lengths.NAME, "fp32", None, **{key: value})


@pytest.mark.proof
@pytest.mark.parametrize("name", list(CONFIGS))
def test_a_killed_training_ends_in_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, config = CONFIGS[name]
    monkeypatch.chdir(tmp_path)
    examples.write_example(example, Path("data/raw") / example)
    settings = load_config(ROOT / "configs" / config, SHORT)
    version = build(settings).version
    undisturbed, killed = (
        plan(settings.model_copy(update={"runs": tmp_path / folder}), version) for folder in ("one", "other")
    )
    for run in (undisturbed, killed):
        set_workers(run, 1)
    process = start_rank(undisturbed)
    assert process.wait(PATIENCE_S) == 0, (undisturbed.path / "rank.log").read_text()
    process = start_rank(killed)
    wait_for(lambda: is_beyond_checkpoint(killed), process, killed)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and not killed.checkpoint(40).exists()
    assert start_rank(killed).wait(PATIENCE_S) == 0, (killed.path / "rank.log").read_text()
    assert model_bytes(killed, 40) == model_bytes(undisturbed, 40)
