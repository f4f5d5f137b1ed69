"""What is seen in conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.dataset.init import config_text, survey
from tests.dataset.init.kinds import config_of, taken
from tests.dataset.raw import chat


def test_suggests_a_filter_from_the_ratings(tmp_path: Path) -> None:
    chat.make(tmp_path / "raw")
    seen = survey("raw")
    assert "# filter: {relevance: 3, formatting: 3}" in config_text(seen)
    assert "of those looked at relevance keeps 100" in config_text(seen)
    assert config_of(seen, tmp_path).dataset.filter == {}


def test_a_pattern_stays_a_pattern(tmp_path: Path) -> None:
    chat.make(tmp_path / "raw")
    config = config_of(survey("raw/*.parquet"), tmp_path)
    assert config.name == "raw"
    assert config.dataset.source.path == "raw/*.parquet"  # type: ignore[union-attr]
    assert taken(config) == 6


def test_other_forms_of_turns_are_named(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "What is it?"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"image": "0.png", "conversations": turns}) + "\n")
    with pytest.raises(UsageError, match=r"conversations in a\.jsonl holds turns as from, value"):
        survey("a.jsonl")
