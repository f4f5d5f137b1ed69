"""Configs of the size that papers train at: they load, plan, and pass preflight, as far as a machine without
their data, their weights and their cluster can show it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pydantic import BaseModel

from tasks.core.config import load_config
from tasks.core.errors import TarmacError
from tasks.core.schema import Config, Train
from tasks.core.schema.recipes import RECIPES, Defaults
from tasks.dataset.version.manifest import read_manifest
from tasks.diagnosis import own_run
from tasks.diagnosis.own_run import OwnCase
from tasks.models.recipes import options_type
from tasks.runs import footprint
from tests.conftest import ROOT
from tests.dataset.raw import chat, nifti, shards
from tests.diagnosis.test_preflight_config import ROOM, write_version
from tests.flows.birds import json_of, output_of

CONFIGS = ROOT / "configs/full"
RATED = ("relevance", "image_correspondence", "visual_dependency", "formatting")
WEIGHTS: dict[str, set[str]] = {
    "clip": set(),
    "reinforced-clip": set(),
    "ct-clip": {"microsoft/BiomedVLP-CXR-BERT-specialized"},
    "nano-vlm": {"google/siglip2-base-patch16-512", "HuggingFaceTB/SmolLM2-360M-Instruct"},
}
"""The repositories whose weights each of them downloads."""
LACKS = re.compile(r"!         train\.model\.\w+: .* of (\S+) not on this machine; tarmac fetch \S+")
SHAPE = (240, 480, 480)
ORIGINALS = ROOT / "docs/originals.md"
"""The tables of the originals' numbers, each with the file of the original that says it."""


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
    """A file of four conversations in the place of FineVision."""
    (folder / "raw/finevision").mkdir(parents=True)
    ratings = {f"{kind}_ratings": [5, 5] for kind in RATED}
    rows = [chat.row(n, **ratings) for n in range(4)]
    chat.write_parquet(folder / "raw/finevision/vqa.parquet", rows)
    return []


def pairs(folder: Path) -> list[str]:
    """A tar of two pictures in the place of LAION's 231,350."""
    return ["--set", f"dataset.source.path={tar(folder / 'raw/laion', [{}, {}])}"]


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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "nano-vlm" else pytest.mark.proof) for name in STAND_INS]
)
def test_it_plans(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    write, expected = STAND_INS[name]
    command = ["plan", str(CONFIGS / f"{name}.yaml"), *write(tmp_path)]
    planned = output_of(capsys, *command)
    assert expected in planned and "nothing was written; to do it: tarmac run" in planned
    reported = [line for line in planned.splitlines() if line.startswith("!")]
    lacking = {found[1] for line in reported if (found := LACKS.match(line))}
    assert lacking == WEIGHTS[name], "as preflight says"
    assert not [line for line in reported if not LACKS.match(line)]
    monkeypatch.setattr(footprint, "footprint_of", Mock(side_effect=TarmacError("it was shown above")))
    train = json_of(capsys, *command)["train"]
    changed = {word.partition("=")[0].removeprefix("train.") for word in command}
    for row in tables()[train["recipe"]]:
        key = row["key"].strip("`")
        found = reduce(getitem, key.split("."), train)
        assert key in changed or found == yaml.safe_load(row["original"])


def tables() -> dict[str, list[dict[str, str]]]:
    """The rows of each recipe's table, by recipe."""
    found: dict[str, list[dict[str, str]]] = {}
    for section in re.findall(r"^## `.*?(?=^## )", ORIGINALS.read_text(), re.DOTALL | re.MULTILINE):
        lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
        header, _, *rows = [[cell.strip(" |") for cell in line] for line in lines]
        found[section.split("`")[1]] = [dict(zip(header, row, strict=False)) for row in rows]
    return found


def value_of(train: Train, key: str) -> Any:
    """A key of the block as JSON has it; that of a model without its defaults."""
    return reduce(getitem, key.split("."), train.model_dump(mode="json"))


@pytest.mark.parametrize("name", list(STAND_INS))
def test_its_numbers_are_the_originals(name: str) -> None:
    train = load_config(CONFIGS / f"{name}.yaml").train
    assert train is not None
    rows = tables()[train.recipe]
    assert {*Defaults._fields, "lr", "steps", "batch_size"} <= {row["key"].strip("`") for row in rows}
    for row in rows:
        assert value_of(train, row["key"].strip("`")) == yaml.safe_load(row["original"]), row
        assert row["where"], "each number has its file"


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "external"])
def test_what_a_config_leaves_out_is_the_originals_or_says_why(recipe: str) -> None:
    name = next(path for path in CONFIGS.glob("*.yaml") if f"recipe: {recipe}\n" in path.read_text())
    full = yaml.safe_load(name.read_text())["train"]
    needed = {key: full[key] for key in ("recipe", "model", "batch_size", "lr", "checkpoint_every")}
    train = Train.model_validate({**needed, "steps": 1_000_000})
    options = options_type(recipe).model_fields
    for row in tables()[recipe]:
        key, documented = row["key"].strip("`"), row.get("default here", "")
        if not documented:
            continue
        part = key.partition("model.")[2]
        if part:
            given = options[part].default
            found = given.model_dump() if isinstance(given, BaseModel) else given
        else:
            found = value_of(train, key)
        assert found == yaml.safe_load(documented), row
        assert found == yaml.safe_load(row["original"]) or row["why another default"], row


def test_the_documents_examples_train_as_the_originals_or_say_where_not() -> None:
    """Each block of these pages that trains with a recipe gives no number of its table another value."""
    pages = [(ROOT / f"docs/models/{name}.md").read_text() for name in ("ct-clip", "vlm")]
    blocks = re.findall(r"```yaml\n(.*?)```", "\n".join(pages), re.DOTALL)
    whole = [block.replace("  ...\n", "") for block in blocks if "\n  recipe: " in block]
    shown = [yaml.safe_load(block)["train"] for block in whole]
    assert {train["recipe"] for train in shown} >= {"ct_clip", "vlm"}
    for train in shown:
        for row in tables().get(train["recipe"], []):
            key = row["key"].strip("`")
            if key in train:
                assert train[key] == yaml.safe_load(row["original"]), row


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
