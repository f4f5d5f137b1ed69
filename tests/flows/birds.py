"""A small project for the tests of commands, and functions that return what a command prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.core.config import load_config
from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
from tests.dataset import raw

COUNT = 60
CONFIG = """\
name: birds
dataset:
  output: data/birds
  modality: image_text
  source: {kind: table, path: birds/captions.csv, image: file, caption: caption}
  shard: {samples: 16}
"""


def make_project(folder: Path) -> None:
    """Raw images in `birds` and a config `birds.yaml`."""
    raw.pictures(folder / "birds", COUNT)
    (folder / "birds.yaml").write_text(CONFIG)


def published(config: str) -> str:
    """Build the dataset of a config without Prefect; returns the version's name."""
    settings = load_config(Path(config))
    result = build(settings)
    versions.publish(settings.dataset.output, result.version, 3)
    return result.version.name


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The JSON object of a command that finds nothing wrong, but that captions such as `picture 7` say nothing."""
    value: dict[str, Any] = json.loads(output_of(capsys, *arguments, "--json"))
    assert value["ok"] is True and {one["code"] for one in value["findings"]} <= {"captions.meaningless"}
    return value
