"""What a step is said to take without memory is what it takes with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import distributed

from tasks.core import config as configs
from tasks.core.schema import Config, Train
from tasks.models import recipes
from tasks.runs.footprint import CONTEXT_BYTES, footprint_of
from tasks.training.devices import Device
from tasks.training.fake_step import CPU, Storages, footprint_on
from tasks.training.ranks import ALONE, Ranks
from tasks.training.resume import _in_shards
from tasks.training.step import Step
from tests.conftest import ROOT
from tests.models.examples import TRAINED, train_block, written_parts

KEYS: list[dict[str, Any]] = [
    {},
    {"checkpointing": True},
    {"ema": 0.9, "grad_clip": 1.0},
    {"micro_batch": 4},
    {"lora": {"rank": 2}},
]


def block(name: str, **keys: Any) -> Train:
    return train_block(name, {"batch_size": 16, "precision": "fp32", "warmup": 0, **keys})


def taken(train: Train, judged: int, ranks: Ranks = ALONE) -> tuple[int, int]:
    """The most bytes that tensors hold in a second step of the training itself, and in judging."""
    recipe, device, storages = recipes.load_recipe(train), Device(CPU, train.precision), Storages()
    with storages:
        if ranks.shards:
            step = _in_shards(recipe, train, device, ranks, None)
        else:
            step = Step(recipe, recipe.build_model(), train, device, ranks)
        batch = recipe.example(train.batch_size // ranks.count, train.pack)
        step(0, batch)
        storages.most = storages.held
        step(1, batch)
        peak, storages.most = storages.most, 0
        del batch
        torch.backends.mha.set_fastpath_enabled(False)  # which a training under autocast does not take
        try:
            with step.judging() as loss_of, device.autocast():
                loss_of(recipe.example(judged))
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    return peak, storages.most


@pytest.mark.parametrize(
    "keys",
    [*KEYS[:1], *(pytest.param(keys, marks=pytest.mark.proof) for keys in KEYS[1:])],
    ids=lambda keys: "-".join(keys) or "plain",
)
@pytest.mark.parametrize("name", TRAINED)
def test_a_step_without_memory_takes_what_the_real_one_does(name: str, keys: dict[str, Any]) -> None:
    train = block(name, **keys)
    found = footprint_on(ALONE, train, judged=8)
    peak, judging = taken(train, judged=8)
    assert found.peak == pytest.approx(peak, rel=0.01)
    assert found.judging == pytest.approx(judging, rel=0.01)


def on_two_ranks(train: Train, *, in_shards: bool) -> Config:
    dataset = {
        "output": "data",
        "modality": "image_text",
        "source": {"kind": "shards", "path": "x"},
    }
    return configs.validate(
        {
            "name": "two",
            "dataset": dataset,
            "train": {**train.model_dump(exclude_unset=True), "checkpoint_every": 2},
            "evaluate": {"every": 2, "tasks": ["loss"], "batch_size": 8},
            "engine": {"train": {"ranks": 2, "shard": in_shards}},
        },
        "test",
    )


def test_batch_norms_that_are_exchanged_are_counted_without_a_gpu() -> None:
    vision = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
    text = {"context_length": 8, "vocab_size": 49408, "width": 8, "heads": 1, "layers": 1}
    model = {"config": {"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}}
    train = block("clip", sync_batch_norm=True).model_copy(update={"model": model})
    assert footprint_of(on_two_ranks(train, in_shards=False)).peak > 0


@pytest.mark.parametrize(
    "name", ["clip", *(pytest.param(one, marks=pytest.mark.proof) for one in TRAINED[1:])]
)
def test_blocks_that_compute_again_do_so_in_the_precision_of_a_gpu(name: str) -> None:
    kept, again = (
        footprint_on(ALONE, block(name, batch_size=256, precision="bf16", checkpointing=given), 8).peak
        for given in (False, True)
    )
    assert again < kept


def as_rank(folder: str, name: str, in_shards: str) -> None:
    """As one of two ranks leave what its tensors held."""
    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
    found = taken(block(name, ema=0.9), 8, Ranks(rank, 2, shards=bool(in_shards)))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


@pytest.mark.proof
@pytest.mark.parametrize("in_shards", [False, True], ids=["whole", "in shards"])
@pytest.mark.parametrize("name", TRAINED)
def test_one_of_two_ranks_takes_what_is_said(name: str, in_shards: bool, tmp_path: Path) -> None:
    given = f"{str(tmp_path)!r}, {name!r}, {'shards' if in_shards else ''!r}"
    code = f"from tests.training.test_fake_step import as_rank; as_rank({given})"
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "RANK": str(rank)})
        for rank in (0, 1)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    found = footprint_of(on_two_ranks(block(name, ema=0.9), in_shards=in_shards))
    peak, judging = json.loads((tmp_path / "1.json").read_text())
    apart = 0.12 if in_shards else 0.01
    assert found.peak == pytest.approx(peak, rel=apart), "gloo copies what it adds up of shards"
    assert found.judging == pytest.approx(judging, rel=0.05)


HOST = """
import sys, json
from tasks.diagnosis import memory
from tests.training.test_fake_step import *
train = block("clip", batch_size=int(sys.argv[1]))
recipe = recipes.load_recipe(train)
step = Step(recipe, recipe.build_model(), train, Device(CPU, "fp32"))
step(0, recipe.example(2))
before = memory.own_bytes("VmRSS")
memory.forget_peak()
batch = recipe.example(train.batch_size)
for number in (1, 2):
    step(number, batch)
print(before, memory.own_bytes("VmHWM"))
"""


@pytest.mark.proof
def test_the_host_holds_within_15_percent_of_what_is_said() -> None:
    """The memory of the process, whatever its allocator does with what tensors take."""
    samples = 4096
    done = subprocess.run(
        [sys.executable, "-c", HOST, str(samples)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = footprint_on(ALONE, block("clip", batch_size=samples), judged=8)
    said = found.peak - found.weights - found.gradients - found.optimizer
    before, most = map(float, done.stdout.split())
    assert said > 1e9 and before + said == pytest.approx(most, rel=0.15)


SEVEN = """
name: seven
dataset: {{output: data, modality: chat, source: {{kind: shards, path: x}}}}
train:
  recipe: vlm
  model: {{vision: {vision}, language: {language}, pixel_shuffle: 3, max_side: 768}}
  pack: {{tokens: 4096}}
  precision: bf16
  checkpointing: true
  batch_size: 16
  steps: 100
  lr: 1.0e-5
  checkpoint_every: 50
engine: {{train: {{gpus: 8, shard: {shard}}}}}
"""


@pytest.mark.proof
@pytest.mark.parametrize("shard", ["true", "false"])
def test_a_model_of_seven_billion_weights_is_planned_for_eight_gpus(shard: str, tmp_path: Path) -> None:
    """Sixteen bytes for each weight, by eight where they are shared, and what a row makes of them."""
    parts = written_parts(
        tmp_path,
        {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "image_size": 384,
            "patch_size": 16,
        },
        {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32},
    )
    config = configs.validate(yaml.safe_load(SEVEN.format(**parts, shard=shard)), "test")
    found = footprint_of(config)
    kept = found.weights + found.gradients + found.optimizer
    assert 7e9 < found.whole / 4 < 7.5e9
    assert kept == pytest.approx(4 * found.whole / (8 if shard == "true" else 1), rel=0.01)
    assert (found.most < 80e9) == (shard == "true"), str(found)
    assert found.most > kept + CONTEXT_BYTES + 1e9 and "AdamW" in str(found)
