"""What `tarmac init` finds in tars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UsageError
from tasks.dataset.init import survey
from tests.dataset.init.kinds import (
    config_of,
    img2dataset,
    reinforced,
    taken,
    tars,
    warnings,
    webdataset,
)
from tests.dataset.raw import png, shards


def test_a_caption_in_json_becomes_the_text(tmp_path: Path) -> None:
    img2dataset(tmp_path / "raw")
    source: Any = config_of(survey("raw"), tmp_path).dataset.source
    assert source.members == {"txt": "json:caption"}


@pytest.mark.parametrize(
    "make",
    [
        lambda number: {"image.png": png(number), "caption.txt": b"a thing"},
        lambda number: {"jpg": png(1, kind="JPEG"), "png": png(2), "txt": b"a thing"},
        lambda number: {("jpg", "png")[number % 2]: png(number), "txt": b"a thing"},
    ],
    ids=["renamed members", "two images per sample", "two formats"],
)
def test_members_of_other_names_are_found(make: Callable[[int], dict[str, bytes]], tmp_path: Path) -> None:
    tars(tmp_path / "raw", make)
    assert taken(config_of(survey("raw"), tmp_path)) == 6


def test_the_samples_of_long_tars_are_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.dataset.init.tar_folders.SAMPLES", 20)
    tars(tmp_path / "raw", lambda number: {"png": png(number), "txt": b"a thing"}, 100)
    seen = survey("raw")
    assert "2 tars, about" in seen.best.seen["path"]
    assert 180 < seen.best.samples < 220


def test_a_torn_tar_is_left_to_the_build(tmp_path: Path) -> None:
    webdataset(tmp_path / "raw")
    (tmp_path / "raw/00002.tar").write_bytes(b"torn" * 500)
    seen = survey("raw")
    assert seen.best.samples == 6


def test_reinforcements_join_the_images_of_the_tar_of_their_name(tmp_path: Path) -> None:
    reinforced(tmp_path / "raw")
    assert config_of(survey("raw"), tmp_path).dataset.source.join[0].match == "shard"  # type: ignore[union-attr]
    for path in (tmp_path / "raw/reinforcement").iterdir():
        path.rename(path.with_name(f"other{path.name}"))
    assert config_of(survey("raw"), tmp_path).dataset.source.join[0].match == "key"  # type: ignore[union-attr]


def test_reinforcements_without_images_are_reported(tmp_path: Path) -> None:
    tars(tmp_path / "raw", lambda _: shards.reinforcement())
    with pytest.raises(UsageError, match="without images: give a folder with both"):
        survey("raw")


def test_members_that_are_not_adjacent_are_noticed(tmp_path: Path) -> None:
    def scattered(number: int) -> dict[str, bytes]:
        return {"png": png(number)} if number % 6 < 3 else {"txt": b"a thing"}

    tars(tmp_path / "raw", scattered, 6)
    assert "pack it again sorted by name" in warnings(survey("raw"))
