"""A plan forecasts what the build then does, and writes nothing."""

from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.building.forecast import forecast
from tests.dataset import raw
from tests.dataset.building.prepared import parquet, pictures, published

COUNT = 100


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return pictures(tmp_path, COUNT)


def test_the_first_build(config: Config, tmp_path: Path) -> None:
    found = forecast(config)
    assert not (tmp_path / "out").exists()
    assert found.up_to_date is None and found.why == "there is no version yet"
    result = build(config)
    assert found.work is not None
    assert (found.work.listed, found.work.to_convert) == (COUNT, COUNT)
    assert found.work.shards == found.work.to_convert_shards == result.shards
    size = sum(path.stat().st_size for path in result.version.glob("*/*.tar"))
    assert found.work.bytes == pytest.approx(size, rel=0.2)
    assert found.work.seconds > 0 and found.free_bytes > 0


def test_a_change(config: Config, tmp_path: Path) -> None:
    published(config)
    assert forecast(config).up_to_date is not None
    before = sorted((tmp_path / "out").rglob("*"))
    (tmp_path / "raw" / "0007.png").write_bytes(raw.png(777))
    found = forecast(config)
    assert found.work is not None
    assert found.why == "samples have changed, come or gone"
    assert found.work.to_convert_shards == 1 and found.work.to_convert <= 16
    assert sorted((tmp_path / "out").rglob("*")) == before
    other = raw.config(tmp_path / "raw", tmp_path / "out", image={"encode": "jpg"})
    assert forecast(other).why == "the dataset block of the config has changed"


def test_what_would_be_rejected_shows_beforehand(config: Config, tmp_path: Path) -> None:
    for number in range(COUNT):
        (tmp_path / "raw" / f"{number:04d}.png").write_text("<html>")
    found = forecast(config)
    assert found.work is not None
    assert list(found.work.tried_rejects) == ["image.not_an_image"]


def test_containers_are_not_read(tmp_path: Path) -> None:
    config = parquet(tmp_path / "raw")
    size = sum(path.stat().st_size for path in (tmp_path / "raw").iterdir())
    found = forecast(config)
    assert (found.work, found.containers, found.read_bytes) == (None, 3, size)
    published(config)
    assert forecast(config).up_to_date is not None


def test_a_wrong_config_is_reported_as_by_the_build(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"dataset\.filter"):
        forecast(raw.config(tmp_path / "raw", tmp_path / "out", filter={"no": 1}))
