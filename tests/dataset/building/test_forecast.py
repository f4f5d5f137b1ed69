"""A plan forecasts what the build then does, and writes nothing."""

import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Config, ShardRules
from tasks.dataset.building.builder import build
from tasks.dataset.building.forecast import _TriedSamples, forecast, spread
from tasks.dataset.building.listed.shard_plan import PlannedShard
from tasks.dataset.sources import Container, RawSample
from tasks.dataset.sources.table import TableImages
from tests.dataset import raw
from tests.dataset.building.prepared import changed, parquet, pictures, published
from tests.dataset.raw import chat, shards
from tests.soak import kill_builds

COUNT = 60


def _tars(folder: Path, image: bytes | None = None) -> Config:
    folder.mkdir()
    for number in range(3):
        members = shards.pairs(20 * number, 20)
        if image is not None:
            members = [(name, image if name.endswith("jpg") else content) for name, content in members]
        (folder / f"{number}.tar").write_bytes(shards.tar_bytes(members, tarfile.USTAR_FORMAT))
    return shards.config(folder, output=folder.parent / "out")


def _chats(folder: Path, image: bytes | None = None) -> Config:
    for number in range(3):
        numbers = range(20 * number, 20 * number + 20)
        rows = [chat.row(one) for one in numbers]
        if image is not None:
            rows = [{**one, "images": [{"bytes": image, "path": None}]} for one in rows]
        chat.write_parquet(folder / f"{number}.parquet", rows)
    source = {"kind": "chat", "path": str(folder)}
    return raw.config(folder, folder.parent / "out", modality="chat", source=source)


CONTAINERS: dict[str, Callable[..., Config]] = {"tars": _tars, "rows of bytes": parquet, "chat": _chats}


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
    assert found.stops is not None and found.stops.startswith("at least 20 of the 20 samples looked at are")


def test_one_broken_sample_of_many_stops_nothing(config: Config, tmp_path: Path) -> None:
    config = changed(config, shard=ShardRules(samples=1))
    published(config)
    (tmp_path / "raw" / "0007.png").write_text("<html>")
    found = forecast(config)
    assert found.work is not None and (found.work.tried, found.work.taken) == (1, 0)
    assert found.stops is None and build(config).rejected == 1


def test_a_full_disk_stops_a_build(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tasks.dataset.building.forecast.shutil.disk_usage", lambda _: SimpleNamespace(free=9)
    )
    found = forecast(config)
    assert found.stops is not None and found.stops.endswith("are free on the disk of dataset.output")


@pytest.mark.parametrize("kind", ["tars", "rows of bytes", "chat"])
def test_the_first_samples_of_containers_are_tried_and_the_others_counted(kind: str, tmp_path: Path) -> None:
    config = CONTAINERS[kind](tmp_path / "raw")
    found = forecast(config)
    assert not (tmp_path / "out").exists()
    assert found.work is None and found.reading is not None and found.stops is None
    reading = found.reading
    assert reading.read_bytes == sum(path.stat().st_size for path in (tmp_path / "raw").iterdir())
    assert (len(reading.containers), reading.changed, reading.read_before) == (3, None, 0)
    assert (reading.tried, reading.taken) == (20, 20)
    assert reading.is_stated == (kind != "tars")
    result = published(config)
    assert reading.samples == pytest.approx(result.read, rel=0.3 if kind == "tars" else 0)
    size = sum(path.stat().st_size for path in result.version.glob("*/*.tar"))
    assert reading.bytes == pytest.approx(size, rel=0.4)
    assert forecast(config).up_to_date is not None


@pytest.mark.parametrize(
    ("count", "bad", "stops"), [(20, 2, True), (20, 1, False), (60, 4, True), (60, 3, False)]
)
def test_a_plan_stops_where_the_first_samples_of_containers_exceed_the_budget(
    count: int, bad: int, stops: bool, tmp_path: Path
) -> None:
    """Rows of Parquet are counted, so that the share of them is certain."""
    rows = [chat.row(number) for number in range(count)]
    for one in rows[:bad]:
        one["images"] = [{"bytes": b"<html>", "path": None}]
    chat.write_parquet(tmp_path / "raw/a.parquet", rows)
    found = forecast(chat.config(tmp_path / "raw", tmp_path / "out"))
    allows = f"and dataset.reject_budget (5.0%) allows {count // 20} of {count}"
    why = f"{bad} of the 20 samples tried are rejected, {allows}"
    assert found.stops == (why if stops else None)
    assert found.reading is not None and found.reading.tried_reasons == {"image.not_an_image": bad}


def test_of_an_estimated_number_of_samples_a_plan_is_less_certain(tmp_path: Path) -> None:
    """48 samples in tars are about 57: of those 2 may be rejected, and of 1.3 times as many 3."""
    trial = _TriedSamples(tried=20, taken=17, reasons=Counter({"key.duplicate": 3}))
    assert trial.stops(0.05, 57, is_stated=False) is None
    assert trial.stops(0.05, 57, is_stated=True) is not None
    worse = replace(trial, taken=16, reasons=Counter({"key.duplicate": 4}))
    why = "4 of the 20 samples tried are rejected, and dataset.reject_budget (5.0%) allows 2 of about 57"
    assert worse.stops(0.05, 57, is_stated=False) == why


@pytest.mark.parametrize("kind", ["tars", "rows of bytes", "chat"])
def test_containers_without_a_single_good_sample_would_stop_the_build(kind: str, tmp_path: Path) -> None:
    config = CONTAINERS[kind](tmp_path / "raw", b"<html>")
    found = forecast(config)
    assert found.stops == "none of 20 samples tried is accepted; mend what they lack"
    assert found.reading is not None
    ((reason, example),) = found.reading.tried_rejects.items()
    assert reason == "image.not_an_image" and "it is HTML" in example
    with pytest.raises(DataError, match=f"60 {reason}|[0-9]+ {reason}"):
        build(config)


def test_a_changed_container_is_named(tmp_path: Path) -> None:
    config = parquet(tmp_path / "raw")
    first = published(config)
    os.utime(tmp_path / "raw/1.parquet")
    (tmp_path / "raw/2.parquet").rename(tmp_path / "raw/3.parquet")
    reading = forecast(config).reading
    assert reading is not None and reading.changed is not None
    assert [reading.containers[place] for place in reading.changed] == ["1.parquet", "3.parquet"]
    assert reading.gone == 1
    assert published(config).version == first.version, "with the same samples it is the same version"
    assert forecast(config).up_to_date is not None


@pytest.mark.parametrize("kind", ["files", "containers"])
def test_what_a_killed_build_has_finished_is_counted(kind: str, tmp_path: Path) -> None:
    write, config_of = kill_builds.SOURCES[kind]
    write(tmp_path / "raw", 0)
    config, staging = config_of(tmp_path / "raw", tmp_path / "out"), tmp_path / "out/staging"
    assert kill_builds.kill_build(kind, tmp_path / "raw", tmp_path / "out", shards=3)
    before = raw.contents(staging)
    found = forecast(config)
    assert raw.contents(staging) == before
    assert found.work is not None and found.work.listed == kill_builds.SAMPLES
    done = len(list(staging.glob("*.arrow")))
    assert found.work.staged_shards == done > 3
    assert found.work.to_convert_shards == found.work.shards - done
    assert build(config).shards == found.work.shards


def test_containers_that_a_killed_build_has_read_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = parquet(tmp_path / "raw")
    items = TableImages.items

    def cut_off(self: TableImages, container: Container) -> Iterator[RawSample]:
        if container.name == "2.parquet":
            raise KeyboardInterrupt
        return items(self, container)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TableImages, "items", cut_off)
        patch.setattr("tasks.dataset.building.listing.COMMIT_BYTES", 0)
        build(config)
    reading = forecast(config).reading
    assert reading is not None and (reading.read_before, len(reading.containers)) == (2, 3)
    assert build(config).read == COUNT


def test_a_wrong_config_is_reported_as_by_the_build(config: Config, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"dataset\.filter"):
        forecast(raw.config(tmp_path / "raw", tmp_path / "out", filter={"no": 1}))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([2, 1], [1, 2, 3]),
        ([8, 8, 8], [1, 7, 13, 19]),
        ([1, 100, 1], [1, 26, 52, 77]),
        ([2] * 50, [1, 26, 51, 76]),
    ],
)
def test_as_many_samples_as_asked_for_are_tried_all_over_the_shards(
    sizes: list[int], expected: list[int]
) -> None:
    ends = list(accumulate(sizes, initial=1))
    shards = [PlannedShard(n, "train", *ends[n : n + 2], "") for n in range(len(sizes))]
    assert spread(shards, 4) == expected
