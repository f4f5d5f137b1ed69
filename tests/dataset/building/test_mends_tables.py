"""A version whose files beside the tars are damaged is mended by the next build, as verify promises."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core.schema import Config
from tasks.dataset.building import freshness
from tasks.dataset.building.builder import is_up_to_date
from tasks.dataset.verify.verifier import verify
from tests.dataset import raw
from tests.dataset.building.prepared import pictures, published
from tests.dataset.damage import flip


@pytest.fixture(scope="module")
def mended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """A config and its version, for tests that leave it as it was."""
    config = pictures(tmp_path_factory.mktemp("mended"))
    return config, published(config).version


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("manifest.json", flip),
        ("manifest.json", Path.unlink),
        ("shards.parquet", flip),
        ("rejects.parquet", Path.unlink),
        ("inputs.arrow", flip),
        ("inputs.arrow", Path.unlink),
        ("index/train.npy", flip),
        ("samples/val.parquet", lambda path: path.write_bytes(b"")),
        ("train/sizes.json", flip),
        ("build.json", flip),
        ("build.json", Path.unlink),
    ],
)
def test_a_damaged_file_beside_the_tars_is_repaired(
    mended: tuple[Config, Path], name: str, damage: Callable[[Path], object]
) -> None:
    config, version = mended
    whole = raw.contents(version, without=("build.json",))
    tars = {path: path.stat().st_ino for path in version.glob("*/*.tar")}
    damage(version / name)
    assert is_up_to_date(config) is None
    assert published(config).version == version
    assert raw.contents(version, without=("build.json",)) == whole
    assert is_up_to_date(config) == version
    assert {path: path.stat().st_ino for path in version.glob("*/*.tar")} == tars, "tars are left alone"
    assert verify(version, "full").findings == []


def test_a_large_file_is_compared_by_size_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pictures(tmp_path)
    index = published(config).version / "index" / "train.npy"
    monkeypatch.setattr(freshness, "HASHED_BYTES", index.stat().st_size - 1)
    flip(index)
    assert is_up_to_date(config) is not None
    os.truncate(index, index.stat().st_size - 1)
    assert is_up_to_date(config) is None
