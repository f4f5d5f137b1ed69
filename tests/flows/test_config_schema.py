"""The printed schema says what the loader says, down to the keys of recipes and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from omegaconf import OmegaConf

from flows.config_schema import config_schema
from tasks.core.config import load_config
from tests.core.test_config import CHAT, CT, DIGITS, complaint


@pytest.fixture(scope="module")
def schema() -> Draft202012Validator:
    Draft202012Validator.check_schema(config_schema())
    return Draft202012Validator(config_schema())


@pytest.mark.parametrize("text", [*(path.read_text() for path in DIGITS.parent.rglob("*.yaml")), CT, CHAT])
def test_the_printed_schema_accepts_what_the_loader_accepts(
    schema: Draft202012Validator, text: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    load_config(tmp_path / "config.yaml")
    assert [error.message for error in schema.iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize(
    "override",
    [
        "trainn.steps=3",
        "train.lrr=3",
        "dataset.source.imge=x",
        "dataset.splits.grup_by=patient",
        "dataset.splits.val=2",
        "evaluate.tasks=[{name: x}]",
        "engine.build.workerz=2",
        "train.lr=fast",
    ],
)
def test_the_printed_schema_refuses_what_the_loader_refuses(
    schema: Draft202012Validator, override: str
) -> None:
    complaint(override)
    values: Any = OmegaConf.load(DIGITS)
    key, _, value = override.partition("=")
    OmegaConf.update(values, key, yaml.safe_load(value), merge=False, force_add=True)
    assert not schema.is_valid(OmegaConf.to_container(values))


@pytest.mark.parametrize(
    "override",
    ["train.model.nam=x", "train.model.augment={re_prop: 1}", "evaluate.tasks=[{kind: zero_shot, labl: x}]"],
)
def test_the_printed_schema_knows_the_keys_of_recipes_and_tasks(
    schema: Draft202012Validator, override: str
) -> None:
    values: Any = OmegaConf.load(DIGITS)
    key, _, value = override.partition("=")
    OmegaConf.update(values, key, yaml.safe_load(value), merge=False, force_add=True)
    assert not schema.is_valid(OmegaConf.to_container(values))
