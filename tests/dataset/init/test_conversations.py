"""What `tarmac init` finds in tables of conversations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.dataset.building.builder import build
from tasks.dataset.building.forecast import forecast
from tasks.dataset.init import config_text, survey
from tasks.dataset.preview.page import page_path, write_beside
from tasks.dataset.verify.verifier import verify
from tasks.dataset.versions import publish
from tasks.loader.indexed import IndexedReader
from tasks.models import recipes
from tests.dataset.init.kinds import config_of, taken
from tests.dataset.raw import chat, png
from tests.models.examples import train_block


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


def test_the_cauldron_is_taken_whole(tmp_path: Path) -> None:
    """As its own builder writes it: `source` in every turn, and one row group per file."""
    for subset in ("tqa", "vqav2"):
        texts = [{**chat.turn(f"Which of {n}?"), "source": subset.upper()} for n in range(10)]
        rows = [{"images": [{"bytes": png(n), "path": None}], "texts": texts[n : n + 1]} for n in range(10)]
        chat.write_parquet(tmp_path / "cauldron" / subset / "train-00000-of-00001.parquet", rows)
    config = config_of(survey("cauldron"), tmp_path)
    assert forecast(config).containers == 2
    built = build(config)
    assert (built.read, built.accepted) == (20, 20)
    assert verify(built.version, level="full").ok
    publish(config.dataset.output, built.version, 1)
    write_beside(built.version)
    assert "Which of 3?" in page_path(built.version).read_text()
    read = IndexedReader(built.version, "train").read(0).members
    assert json.loads(read["json"])["messages"][0].keys() == {"user", "assistant", "source"}
    batch = recipes.load_recipe(train_block("vlm")).transform(True)(read, 1)
    assert len(batch["tokens"]) and len(batch["image"])
