"""A config's evaluations beside the data that they would be asked of."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flows.parameters import Overrides, configured
from tasks.core.errors import UsageError
from tasks.core.files import read_json, write_json
from tasks.core.schema import Config
from tasks.core.schema.recipes import RECIPES, RecipeClasses
from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
from tasks.dataset.version.index import read_index
from tasks.evaluation.fit import require_fit, require_held_out
from tests.conftest import ROOT, digits_config
from tests.dataset import raw
from tests.models import lengths


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("split: vla", "zero_shot: split: .* has no 'vla'; there are: train, val"),
        ("label: nosuch", "zero_shot: label: the samples of split val have no 'nosuch' .*; there are: label"),
        ("split: train, label: nosuch", "zero_shot: label: the samples of split train have no 'nosuch'"),
    ],
)
def test_what_the_data_does_not_have_is_named(
    digits_dataset: Path, tmp_path: Path, task: str, says: str
) -> None:
    config = digits_config(tmp_path, tmp_path, f"evaluate.tasks=[{{kind: zero_shot, {task}}}]")
    with pytest.raises(UsageError, match=rf"^evaluate\.tasks: {says}"):
        require_fit(config, versions.resolve(digits_dataset))


def test_what_it_has_fits(digits_dataset: Path, tmp_path: Path) -> None:
    version = versions.resolve(digits_dataset)
    for task in ("zero_shot", "{kind: zero_shot, split: train}", "retrieval"):
        require_fit(digits_config(tmp_path, tmp_path, f"evaluate.tasks=[{task}]"), version)
    require_fit(digits_config(tmp_path, tmp_path, "evaluate=null"), version)


def test_no_telling_which_split_is_held_out(digits_dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(versions.resolve(digits_dataset), tmp_path / "copy")
    manifest = read_json(copy / "manifest.json")
    splits = manifest["splits"]
    val = splits.pop("val")
    write_json(copy / "manifest.json", manifest)
    with pytest.raises(UsageError, match=r"has no split but train; hold more out by dataset\.splits"):
        require_fit(digits_config(tmp_path, tmp_path), copy)
    splits |= {"one": val, "two": val}
    write_json(copy / "manifest.json", manifest)
    with pytest.raises(UsageError, match="has the splits train, one, two; name one by split: NAME"):
        require_fit(digits_config(tmp_path, tmp_path), copy)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("split: train", "needs two splits, and both are 'train'; give another one"),
        ("fitted_on: trainn", "has no split 'trainn'; there are: train, val"),
    ],
)
def test_a_probe_needs_a_split_to_fit_on(digits_dataset: Path, tmp_path: Path, given: str, says: str) -> None:
    config = digits_config(tmp_path, tmp_path, f"evaluate.tasks=[{{kind: linear_probe, {given}}}]")
    with pytest.raises(UsageError, match=rf"^evaluate\.tasks: linear_probe: .*{says}"):
        require_fit(config, versions.resolve(digits_dataset))


@pytest.mark.parametrize(
    ("splits", "task", "says"),
    [
        ("{val: 0}", "zero_shot", "zero_shot: dataset.splits makes train; hold a part out, such as by --set"),
        ("{}", "retrieval", "retrieval: dataset.splits makes train; hold a part out"),
        ("{a: 0.1, b: 0.1}", "zero_shot", "zero_shot: dataset.splits makes train and a and b; name the one"),
        (
            "{val: 0.1}",
            "{kind: zero_shot, split: test}",
            "zero_shot: .* makes train and val; .* judges the s",
        ),
        ("{val: 0}", "{kind: zero_shot, split: train}", None),
        ("{val: 0.1}", "zero_shot", None),
        ("{from: split}", "zero_shot", None),
    ],
)
def test_a_split_that_a_build_will_not_make_is_refused_before_it(
    tmp_path: Path, splits: str, task: str, says: str | None
) -> None:
    config = digits_config(tmp_path, tmp_path, f"dataset.splits={splits}", f"evaluate.tasks=[{task}]")
    if says is None:
        require_held_out(config)
        return
    with pytest.raises(UsageError, match=rf"^evaluate\.tasks: {says}"):
        require_held_out(config)


def test_one_sample_is_too_few_to_be_found_among(digits_dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(versions.resolve(digits_dataset), tmp_path / "copy")
    manifest = read_json(copy / "manifest.json")
    manifest["splits"]["val"]["samples"] = 1
    write_json(copy / "manifest.json", manifest)
    with pytest.raises(UsageError, match=r"split val of .*copy has 1 sample, and retrieval needs at least 2"):
        require_fit(digits_config(tmp_path, tmp_path, "evaluate.tasks=[retrieval]"), copy)


def test_captions_that_are_all_the_same_have_nothing_to_tell_apart(tmp_path: Path) -> None:
    rows = raw.pictures(tmp_path / "raw", 60)
    for caption, fits in (("a photo", False), ("a photo of {}", True)):
        raw.write_table(tmp_path / "raw", [(row[0], caption.format(n), "") for n, row in enumerate(rows)])
        version = build(raw.config(tmp_path / "raw", tmp_path / caption[-2:], splits={"val": 0.3})).version
        config = digits_config(tmp_path, tmp_path, "evaluate.tasks=[retrieval]")
        if fits:
            require_fit(config, version)
            continue
        with pytest.raises(UsageError, match="retrieval: all captions of split val are the same"):
            require_fit(config, version)


def test_a_sample_that_cannot_be_read_says_nothing(digits_dataset: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(versions.resolve(digits_dataset), tmp_path / "copy")
    second = int(read_index(copy, "val")[1]["offset"])
    for task, left in (("retrieval", second), ("{kind: zero_shot, label: x}", 0)):
        os.truncate(copy / "val/000000.tar", left)
        require_fit(digits_config(tmp_path, tmp_path, f"evaluate.tasks=[{task}]"), copy)


def test_a_task_that_judges_what_the_recipe_does_not_give_is_refused_before_any_data_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(RECIPES, lengths.NAME, RecipeClasses(*lengths.ROW))
    block = f"train={{recipe: {lengths.NAME}, model: {{}}, batch_size: 32, steps: 200, lr: 0.01, checkpoint_every: 200}}"
    says = (
        "zero_shot judges embeddings, but models of recipe lengths give none; take it out of evaluate.tasks"
    )
    with pytest.raises(UsageError, match=rf"^evaluate\.tasks: {says}$"):
        configured(ROOT / "configs/digits-clip.yaml", Overrides(set=[block]))


def test_another_dataset_has_its_own_splits_labels_and_samples(digits_dataset: Path, tmp_path: Path) -> None:
    version = versions.resolve(digits_dataset)

    def task(dataset: Path, more: str = "") -> Config:
        given = f"evaluate.tasks=[{{kind: zero_shot, name: old, dataset: '{dataset}'{more}}}]"
        return digits_config(tmp_path, tmp_path, given)

    require_fit(task(digits_dataset), version)
    with pytest.raises(
        UsageError, match=r"evaluate\.tasks: old: label: the samples of split val have no 'nosuch'"
    ):
        require_fit(task(digits_dataset, ", label: nosuch"), version)
    with pytest.raises(
        UsageError, match=r"old: dataset: .*/none holds no version of a dataset; build it first"
    ):
        require_fit(task(tmp_path / "none"), version)
    chats = tmp_path / "chats"
    shutil.copytree(version, chats)
    write_json(chats / "manifest.json", {**read_json(chats / "manifest.json"), "modality": "chat"})
    with pytest.raises(UsageError, match=r"/chats is one of chat, which recipe clip does not take"):
        require_fit(task(chats), version)
    program = "{kind: command, command: ['true', '{output}'], dataset: data/old}"
    with pytest.raises(
        UsageError, match=r"command: dataset: has no effect, because command judges no samples"
    ):
        require_fit(digits_config(tmp_path, tmp_path, f"evaluate.tasks=[{program}]"), version)
