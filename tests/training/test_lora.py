"""Low-rank adapters: what they train, what they leave alone, and what a checkpoint of them holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.core import config as configs
from tasks.core.errors import UsageError
from tasks.evaluation.checkpoint import load_model_of
from tasks.models import adapters, recipes
from tasks.training.step import Step
from tests.models.examples import batch_of, train_block
from tests.training.helpers import make_run, model_bytes, rows, train_here
from tests.training.recipe_steps import step_of

WITH_BLOCKS = ("clip", "ct_clip", "vlm")
RANK = 2
LORA: dict[str, Any] = {"lora": {"rank": RANK, "alpha": 4}}


def taken(name: str, steps: int = 3, **keys: Any) -> Step:
    """A training of the recipe's example after some steps."""
    recipe = recipes.load_recipe(train_block(name))
    step = step_of(name, "fp32", keys.pop("micro_batch", None), **{**LORA, **keys})
    for number in range(steps):
        step(number, batch_of(recipe, name))
    return step


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_only_matrices_of_blocks_change_and_by_no_more_than_the_rank(name: str) -> None:
    before = {key: value.clone() for key, value in step_of(name, "fp32", None).model.state_dict().items()}
    after = taken(name).model.state_dict()
    assert list(after) == list(before)
    changed = {key for key, value in after.items() if not torch.equal(value, before[key])}
    of_blocks = {key for key in changed if "blocks." in key or "layers." in key}
    assert len(of_blocks) >= 8
    for key in of_blocks:
        assert 1 <= int(torch.linalg.matrix_rank((after[key] - before[key]).double(), rtol=1e-3)) <= RANK, key
    whole = {"clip": {"logit_scale"}, "vlm": {"projector.linear.weight"}}
    if name in whole:
        assert changed - of_blocks == whole[name]
    else:
        assert not [key for key in changed - of_blocks if key.startswith("visual")]


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_merged_weights_compute_the_same(name: str) -> None:
    step = taken(name)
    batch = batch_of(recipes.load_recipe(train_block(name)), name)
    trained = step.loss_of(batch)
    with step.judging() as judge:
        loss = judge(batch)
        assert not any("lora" in key for key in step.model.state_dict())
    assert float(loss.sum / loss.weight) == pytest.approx(trained, rel=1e-5)


def test_weights_under_the_adapters_stay_as_they_are() -> None:
    """To the bit, also where peft merges and unmerges in each pass."""
    first = {
        key: value.clone()
        for key, value in step_of("clip", "fp32", None, **LORA).task.model.state_dict().items()
    }
    for key, value in taken("clip", 5, micro_batch=2).task.model.state_dict().items():
        if "lora" not in key and key != "logit_scale":
            assert torch.equal(value, first[key]), key


def test_activations_that_are_computed_again_give_the_same() -> None:
    whole, again = (taken("clip", checkpointing=value).model.state_dict() for value in (False, True))
    assert all(torch.equal(whole[key], value) for key, value in again.items())


def test_targets_and_frozen_parts_are_left_out() -> None:
    keys = {"lora": {"targets": ["attn", "mlp.c_fc"]}, "freeze": ["text"]}
    adapted = {
        key.partition(".lora_A")[0]
        for key in taken("clip", 0, **keys).task.model.state_dict()
        if "lora_A" in key
    }
    assert adapted == {
        f"visual.transformer.resblocks.{n}.{one}" for n in range(3) for one in ("attn", "mlp.c_fc")
    }
    with pytest.raises(UsageError, match=r"train\.lora\.targets: no block has 'c_fcc'; did you mean"):
        taken("clip", 0, lora={"targets": ["c_fcc"]})
    with pytest.raises(UsageError, match=r"train\.lora: has no effect on this model"):
        taken("clip", 0, freeze=["vision", "text"])


def test_adapters_of_unlocked_blocks_alone_are_trained() -> None:
    step = taken("clip", unlocked={"vision": 2})
    moved = {key for key, value in step.task.model.state_dict().items() if "lora_B" in key and value.any()}
    assert {key.split(".")[3] for key in moved if key.startswith("visual")} == {"2"}, "the last of three"
    with pytest.raises(
        UsageError, match=r"train\.unlocked\.vision: 1 leaves nothing to train.*unlock one group more"
    ):
        taken("clip", 0, unlocked={"vision": 1})


@pytest.mark.parametrize("key", [{"ema": 0.9}, {"compile": True}])
def test_what_does_not_go_with_adapters_is_refused(key: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not go with lora; take one of them out"):
        train_block("clip", {**LORA, **key})


def test_without_peft_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"train\.lora: needs peft, .* pip install 'tarmac\[lora\]'"):
        taken("clip", 0)


def test_a_run_resumes_to_the_bit_and_is_evaluated_merged(digits_dataset: Path, tmp_path: Path) -> None:
    few = ("train.steps=6", "train.checkpoint_every=3", "evaluate.every=6", "train.warmup=0")
    run = make_run(digits_dataset, tmp_path, *few, "train.lora={rank: 4}", "train.layer_decay=0.7")
    assert train_here(run) == 6
    loss, weights = rows(run, "val")[6]["val/loss"], model_bytes(run, 6)
    _, model = load_model_of(run, configs.reload(run.config), 6)
    state = torch.load(run.checkpoint(6) / "state.pt", weights_only=True)["weights"]
    base = state["visual.transformer.resblocks.0.attn.base_layer.in_proj_weight"]
    assert not torch.equal(model.state_dict()["visual.transformer.resblocks.0.attn.in_proj_weight"], base)
    shutil.rmtree(run.checkpoint(6))
    rest = [line for line in run.metrics.read_text().splitlines() if json.loads(line)["train/step"] <= 3]
    run.metrics.write_text("\n".join(rest) + "\n")
    assert train_here(run) == 6
    assert model_bytes(run, 6) == weights and rows(run, "val")[6]["val/loss"] == loss
    assert not run.sanity.exists(), "no check takes the adapters for a mistake"
