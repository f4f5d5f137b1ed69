"""Every key of a config is explained, in a terminal and on docs/config.md, by what stands in the models."""

from __future__ import annotations

import re

import pytest
import yaml

from flows import config_keys
from flows.cli import main
from flows.config_keys import REQUIRED, ExplainedKey, every_key, find_keys
from tests.conftest import ROOT
from tests.flows.birds import json_of, output_of


def test_the_page_is_up_to_date() -> None:
    """`python -m flows.config_keys` writes it again."""
    assert config_keys.PAGE.read_text(encoding="utf-8") == config_keys.config_page()
    assert max(map(len, config_keys.config_page().splitlines())) <= 120


def test_every_key_has_a_meaning_a_type_and_a_page_that_is_there() -> None:
    assert len(every_key()) > 350
    for key in every_key():
        assert key.meaning and key.type, key.address
        assert (ROOT / key.page).exists(), key.page


@pytest.mark.parametrize("key", every_key(), ids=lambda key: key.address)
def test_an_example_is_a_line_of_a_config(key: ExplainedKey) -> None:
    if key.example:
        assert list(yaml.safe_load(key.example)) == [key.name.rpartition(".")[2]]
    if key.default and not key.default.startswith(("by the recipe", "those of", REQUIRED)):
        yaml.safe_load(key.default)


def test_a_key_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(capsys, "explain", "dataset.splits").splitlines() == [
        "dataset.splits",
        "  How samples are divided into splits: shares to hold out, chosen by key hash or by group, such",
        "  as `{val: 0.05, group_by: patient}`; or `{from: COLUMN}`, the field that names every sample's",
        "  split.",
        "  type     a block of keys",
        "  default  {val: 0.15}",
        "  example  splits: {val: 0.05, group_by: patient}",
        "  keys     group_by, from",
        "  more     docs/data/index.md",
    ]
    size = output_of(capsys, "explain", "dataset.shard.bytes")
    assert "type     a text such as 256MB or 2GB or null" in size and "example  bytes: 256MB" in size
    assert "default  by the recipe: clip " in output_of(capsys, "explain", "train.weight_decay")
    assert "default  none: the key is required" in output_of(capsys, "explain", "train.lr")
    found = json_of(capsys, "explain", "loader.workers")["keys"]
    assert [(one["type"], one["default"]) for one in found] == [("an integer at least 0 or auto", "auto")]


@pytest.mark.parametrize(
    ("asked", "address"),
    [
        ("evaluate.tasks.zero_shot.templates", "evaluate.tasks.zero_shot.templates"),
        ("evaluate.tasks.templates", "evaluate.tasks.zero_shot.templates"),
        ("dataset.source.table.image", "dataset.source.table.image"),
        ("dataset.source.image", "dataset.source.table.image"),
        ("dataset.sources[0].table.image", "dataset.source.table.image"),
        ("dataset.source.kind", "dataset.source.kind"),
        ("train.model.vlm.vision", "train.model.vlm.vision"),
        ("train.lr.vision", "train.lr"),
        ("dataset.splits.val", "dataset.splits"),
        ("engine.train.gpus", "engine.train.gpus"),
    ],
)
def test_a_key_is_found_by_the_name_it_has_in_a_config_or_by_its_kind(asked: str, address: str) -> None:
    assert [key.address for key in find_keys(asked)] == [address]


def test_a_key_that_differs_by_kind_is_explained_for_each() -> None:
    found = {key.where for key in find_keys("train.model.name")}
    assert found == {"recipe: clip", "recipe: clip_reinforced"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("dataset.splitz", "KEY: no key is named 'dataset.splitz'; did you mean dataset.splits?"),
        ("lr", "did you mean train.lr?"),
        ("evaluate.tasks.zero_shot.template", "did you mean evaluate.tasks.templates?"),
        ("datset", "did you mean dataset?"),
    ],
)
def test_an_unknown_key_is_one_line_with_the_nearest(
    asked: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", asked]) == 2
    assert capsys.readouterr().err.rstrip().endswith(says)


def test_the_first_keys_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output_of(capsys, "explain").splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["name", "runs", "dataset"]
    assert lines[-1] == "next: tarmac explain KEY, such as dataset.splits"


def test_the_schema_is_for_people_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(capsys, "schema").count("\n") > 500
    assert output_of(capsys, "schema", "--json").count("\n") == 1


def test_tarmac_alone_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    alone = output_of(capsys)
    assert alone == output_of(capsys, "--help")
    assert re.search(r"init +Look at raw data", alone)
