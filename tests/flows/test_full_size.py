"""Configs of the size that papers train at: they load, plan, and pass preflight, as far as a machine without
their data, their weights and their cluster can show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tasks.core.config import load_config
from tasks.core.schema import Config, Train
from tasks.dataset.manifest import read_manifest
from tasks.diagnosis import own_run
from tasks.diagnosis.own_run import OwnCase
from tests.conftest import ROOT
from tests.dataset.raw import chat, nifti, shards
from tests.diagnosis.test_preflight_config import ROOM, write_version
from tests.flows.birds import output_of

CONFIGS = ROOT / "tests/full_size"
WEIGHTS: dict[str, set[str]] = {
    "clip": set(),
    "reinforced-clip": set(),
    "ct-clip": {"microsoft/BiomedVLP-CXR-BERT-specialized"},
    "nano-vlm": {"google/siglip2-base-patch16-512", "HuggingFaceTB/SmolLM2-360M-Instruct"},
}
"""The repositories whose weights each of them downloads."""
DOUBTS = {
    "nano-vlm": ["train.data: data/docs holds no version of a dataset yet; build it before the training"],
}
LACKS = re.compile(r"!         train\.model\.\w+: .* of (\S+) not on this machine; tarmac fetch CONFIG")
SHAPE = (240, 480, 480)
NANOVLM = {
    "lr": {"projector": 5.12e-3, "vision": 5.0e-5, "language": 5.0e-5},
    "warmup": 0.03,
    "schedule": "cosine",
    "weight_decay": 0.01,
    "grad_clip": 1.0,
    "precision": "bf16",
    "pack": {"tokens": 4096, "images": 18},
    "micro_batch": 2,
}
CT_CLIP = {
    "lr": 1.25e-6,
    "warmup": 0,
    "schedule": "constant",
    "weight_decay": 0.0,
    "grad_clip": 0.5,
    "steps": 100_000,
}
ORIGINALS: dict[str, dict[str, Any]] = {
    "nano-vlm": NANOVLM,
    "ct-clip": CT_CLIP,
    "reinforced-clip": {
        "batch_size": 8192,
        "steps": 30_000,
        "lr": 1.0e-3,
        "warmup": 1000,
        "schedule": "cosine",
        "weight_decay": 0.2,
        "grad_clip": 1.0,
    },
}
"""What nanoVLM's config.py and train.py (4e0c096), CT-CLIP's run_train.py and CTCLIPTrainer.py (a2a155c) and
MobileCLIP's run_datacompdr12m.sh (4144bb1) train with, as far as there are keys for it."""
TILES = {"pixel_shuffle": 4, "max_side": 2048, "upscale": True}


def scans(folder: Path) -> list[str]:
    """Four of CT-RATE's in the place of 50,000, which make a batch."""
    where = folder / "CT-RATE"
    names = [f"{split}_{patient}_a_1" for split in ("train", "valid") for patient in (1, 2)]
    where.mkdir()
    nifti.tables(where, names)
    for number, name in enumerate(names):
        (where / f"{name}.nii.gz").write_bytes(nifti.packed(nifti.nifti(nifti.stored(number))))
    header, *rows = (where / "reports.csv").read_text().splitlines()
    header = header.replace("Findings", "Findings_EN").replace("Impression", "Impressions_EN")
    (where / "reports.csv").write_text("\n".join([header, *rows]) + "\n")
    moved = {"dataset.source.path": where, "dataset.output": folder / "ct-rate", "train.batch_size": 4}
    return [word for key, value in moved.items() for word in ("--set", f"{key}={value}")]


def chats(folder: Path) -> list[str]:
    """A file of four conversations in the place of the Cauldron."""
    (folder / "raw/cauldron").mkdir(parents=True)
    rows = [chat.row(n, relevance_ratings=[5], image_correspondence_ratings=[5]) for n in range(4)]
    chat.write_parquet(folder / "raw/cauldron/vqa.parquet", rows)
    return []


def pairs(folder: Path) -> list[str]:
    """A tar of two pictures in the place of CC12M's 1,243."""
    return ["--set", f"dataset.source.path={tar(folder / 'raw/cc12m', [{}, {}])}"]


def reinforced(folder: Path) -> list[str]:
    """Two pictures in a tar, and their reinforcements in another."""
    uids = [{"uid": f"{number:032x}"} for number in range(2)]
    tar(folder / "raw/datacompdr", uids)
    return ["--set", f"dataset.source.path={tar(folder / 'raw/datacomp', uids)}"]


def tar(folder: Path, facts: list[dict[str, str]]) -> Path:
    folder.mkdir(parents=True)
    samples = [shards.pair(f"{number:09d}", number, **about) for number, about in enumerate(facts)]
    (folder / "00000.tar").write_bytes(shards.tar_bytes(member for sample in samples for member in sample))
    return folder


STAND_INS: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "ct-clip": (scans, "train     ct_clip, after the build, as a Slurm job on 4 GPUs"),
    "clip": (pairs, "train     clip, after the build, as a Slurm job on 8 GPUs"),
    "reinforced-clip": (
        reinforced,
        "train     clip_reinforced, after the build, as a Slurm job on 8 GPUs",
    ),
    "nano-vlm": (chats, "train     vlm, after the build, as a Slurm job on 8 GPUs"),
}


def test_all_of_them_have_their_stand_in() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(STAND_INS) == set(WEIGHTS)


@pytest.mark.parametrize("name", list(STAND_INS))
def test_it_plans(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    write, expected = STAND_INS[name]
    planned = output_of(capsys, "plan", str(CONFIGS / f"{name}.yaml"), *write(tmp_path))
    assert expected in planned and "nothing was written; to do it: tarmac run" in planned
    reported = [line for line in planned.splitlines() if line.startswith("!")]
    lacking = {found[1] for line in reported if (found := LACKS.match(line))}
    assert lacking == WEIGHTS[name], "as preflight says"
    assert [line for line in reported if not LACKS.match(line)] == [
        f"!         {doubt}" for doubt in DOUBTS.get(name, ())
    ]


@pytest.mark.parametrize("name", list(ORIGINALS))
def test_its_numbers_are_the_originals(name: str) -> None:
    train = load_config(CONFIGS / f"{name}.yaml").train
    assert train is not None
    there = train.model_dump(mode="json")
    assert {key: there[key] for key in ORIGINALS[name]} == ORIGINALS[name]
    if name == "nano-vlm":
        assert {key: train.model[key] for key in TILES} == TILES


@pytest.mark.parametrize(("recipe", "original"), [("vlm", NANOVLM), ("ct_clip", CT_CLIP)])
def test_the_documents_numbers_are_the_originals(recipe: str, original: dict[str, Any]) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/recipes.md").read_text(), re.DOTALL)
    shown = [
        Train.model_validate(yaml.safe_load(block)["train"]) for block in blocks if f"{recipe}\n" in block
    ]
    (train,) = [one for one in shown if one.recipe == recipe]
    there = train.model_dump(mode="json")
    assert {key: there[key] for key in original if key != "precision" or recipe == "vlm"} == original


def version_for(config: Config, folder: Path) -> Path:
    """A version as the build of such data would leave it, without the tars."""
    samples = 200_000
    version = write_version(folder, 100, samples, modality=config.dataset.modality)
    if config.dataset.modality == "reinforced":
        widths = pa.array(np.full(samples, 2 * 768, np.int32))
        pq.write_table(pa.table({"embedding_width": widths}), version / "samples/train.parquet")
    if config.dataset.modality == "volume_report":
        axes = zip(("depth", "height", "width"), SHAPE, strict=True)
        sides = {axis: pa.array(np.full(samples, side, np.int32)) for axis, side in axes}
        pq.write_table(pa.table(sides), version / "samples/train.parquet")
    return version


@pytest.mark.parametrize("name", list(STAND_INS))
def test_preflight_finds_nothing_but_missing_weights(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    config = load_config(CONFIGS / f"{name}.yaml")
    assert config.train is not None
    version = version_for(config, tmp_path)
    case = OwnCase(config, config.train, version, read_manifest(version), 32, ROOM, 1e15)
    found = own_run.judge_own_run(case)
    assert {one.code for one in found} == ({"weights.missing"} if WEIGHTS[name] else set())
    assert all(any(name in str(one.evidence) for one in found) for name in WEIGHTS[name])
