"""Copies stay on one side of a split, whatever comes and goes, and what was measured is not measured again."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tasks.core.errors import TarmacError, UsageError
from tasks.core.schema import Config, Splits
from tasks.dataset import duplicates
from tasks.dataset.building import looks
from tasks.dataset.building.builder import build
from tasks.dataset.building.content_groups import group_of
from tasks.dataset.building.forecast import forecast
from tasks.dataset.building.listed.catalogue import Catalogue
from tasks.dataset.splits import split_of
from tasks.dataset.version.build_info import read_build_info
from tests.dataset import raw
from tests.dataset.building.prepared import COUNT, changed, keys, make, noise, parquet, planned, published

CONTENT = {"val": 0.4, "group_by": "content"}


def copies(count: int) -> dict[str, Image.Image]:
    """Each picture twice: the second one smaller and under another name."""
    return singles(count) | {
        f"copy{number:03d}.png": noise(number).resize((48, 48)) for number in range(count)
    }


def singles(count: int) -> dict[str, Image.Image]:
    return {f"a{number:03d}.png": noise(number) for number in range(count)}


def sides(version: Path) -> dict[str, str]:
    return {key: split for split, some in keys(version).items() for key in some}


def measured(config: Config, then: Callable[[int, int], None] = lambda *_: None, **asked: Any) -> int:
    """Build and publish; return how many samples were measured for their groups. `then` is called with how
    many are, and how many will be."""
    counts = [0]

    def progress(done: int, total: int, note: str = "") -> None:
        if note == looks.NOTE:
            counts.append(total)
            then(done, total)

    published(config, progress=progress, **asked)
    return max(counts)


def drawn(share: float, group: str) -> str:
    return split_of(Splits.model_validate({"val": share}), group, None, {})


@pytest.mark.parametrize("size", [2, 5, 20])
def test_groups_of_any_size_are_held_out_as_often_as_single_samples(size: int) -> None:
    """The share of 20,000 groups in `val` is expected to be 5 %, with a standard deviation of 0.15 %."""
    draw = partial(drawn, 0.05)
    found = Counter(draw(group_of([f"{n}-{one}" for one in range(size)], {}, draw)) for n in range(20_000))
    assert found["val"] / 20_000 == pytest.approx(0.05, abs=4 * 0.00154)


def test_no_sample_that_was_trained_on_is_ever_held_out() -> None:
    """Samples and copies come and go, and groups become one, over 200 versions."""
    draw, rng = partial(drawn, 0.3), random.Random(1)
    known: dict[str, str] = {}
    cluster: dict[str, int] = {}
    moved = Counter[tuple[str, str]]()
    for version in range(200):
        for number in range(rng.randrange(8)):
            cluster[f"{version}-{number}"] = rng.randrange(60)
        for key in rng.sample(sorted(cluster), len(cluster) // 20):
            del cluster[key]
        if rng.random() < 0.3:
            one, other = rng.randrange(60), rng.randrange(60)
            cluster = {key: one if label == other else label for key, label in cluster.items()}
        now = {}
        for label in set(cluster.values()):
            members = [key for key in cluster if cluster[key] == label]
            now |= dict.fromkeys(members, group_of(members, known, draw))
        moved.update((draw(known[key]), draw(now[key])) for key in known.keys() & now.keys())
        known = now
    assert moved["train", "train"] > 1000 and moved["val", "val"] > 100
    assert moved["val", "train"] and not moved["train", "val"]


def test_copies_are_on_one_side_and_others_where_they_were(tmp_path: Path) -> None:
    pictures = {**copies(30), **{f"single{number}.png": noise(900 + number) for number in range(30)}}
    apart = sides(build(make(tmp_path / "raw", pictures, splits={"val": 0.4})).version)
    together = sides(build(make(tmp_path / "raw", pictures, splits=CONTENT)).version)
    split_pairs = [number for number in range(30) if apart[f"a{number:03d}"] != apart[f"copy{number:03d}"]]
    assert split_pairs
    assert all(together[f"a{number:03d}"] == together[f"copy{number:03d}"] for number in range(30))
    assert all(together[f"single{number}"] == apart[f"single{number}"] for number in range(30))
    assert set(together.values()) == {"train", "val"}


def test_a_new_copy_joins_the_sample_that_is_there_and_its_going_moves_nothing(tmp_path: Path) -> None:
    first = sides(published(make(tmp_path / "raw", singles(30), splits=CONTENT)).version)
    second = sides(published(make(tmp_path / "raw", copies(30), splits=CONTENT)).version)
    assert set(first.values()) == {"train", "val"}
    for number in range(30):
        assert second[f"copy{number:03d}"] == second[f"a{number:03d}"] == first[f"a{number:03d}"]
    for number in range(30):
        (tmp_path / f"raw/a{number:03d}.png").unlink()
    left = {name: picture for name, picture in copies(30).items() if name.startswith("copy")}
    third = sides(build(make(tmp_path / "raw", left, splits=CONTENT), accept_loss=True).version)
    assert third == {key: second[key] for key in third} and len(third) == 30


def test_a_damaged_version_is_named_where_its_groups_cannot_be_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    version = published(make(tmp_path / "raw", copies(4), splits=CONTENT)).version
    (version / "samples/train.parquet").write_bytes(b"")
    build(make(tmp_path / "raw", {**copies(4), "new.png": noise(50)}, splits=CONTENT))
    assert "samples/train.parquet: cannot be read" in caplog.text
    assert "so copies are grouped as by a first build, and samples may change sides" in caplog.text


def test_only_what_is_new_is_measured(tmp_path: Path) -> None:
    """Neither a filter, nor more samples, nor another place in the table counts."""
    assert measured(make(tmp_path / "raw", copies(6), splits=CONTENT)) == 12
    more = {**copies(6), "0new.png": noise(50), "new.png": noise(51)}
    assert measured(make(tmp_path / "raw", more, splits=CONTENT)) == 2
    assert measured(make(tmp_path / "raw", more, splits=CONTENT, filter={"contrast": 1})) == 0
    assert len(list((tmp_path / "out/looks").iterdir())) == 1
    assert measured(make(tmp_path / "raw", more, splits=CONTENT), rehash=True) == 14
    looked = make(tmp_path / "raw", more, splits=CONTENT, image={"encode": "jpg"})
    assert measured(looked) == 14, "what is stored looks different"


def test_a_build_that_was_stopped_goes_on_with_what_it_had_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(tmp_path / "raw", copies(20), splits=CONTENT)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(config, stop)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Catalogue, "plan", stop)  # after samples have changed their groups
        assert 20 < measured(config) < 40
    assert measured(config) == 0
    found = sides(tmp_path / "out/current")
    assert all(found[f"a{number:03d}"] == found[f"copy{number:03d}"] for number in range(20))


@pytest.mark.parametrize("is_back", [False, True], ids=["still away", "back"])
def test_what_cannot_be_read_for_now_is_measured_by_the_next_build(is_back: bool, tmp_path: Path) -> None:
    """The last picture in the order of the source is away while others are measured. When all are converted,
    it `is_back`."""
    pictures = {**copies(20), "zopy.png": noise(7).resize((40, 40))}
    config = make(tmp_path / "raw", pictures, splits=CONTENT, reject_budget=0.2)
    last = tmp_path / "raw/zopy.png"
    away = tmp_path / "zopy.png"

    def move(done: int, total: int) -> None:
        if done == total and is_back:
            away.rename(last)
        elif last.exists():
            last.rename(away)

    assert measured(config, move) == 41
    assert read_build_info(tmp_path / "out/current").unread == 1
    assert ("zopy" in sides(tmp_path / "out/current")) == is_back
    if not is_back:
        away.rename(last)
    assert measured(config) == 1
    found = sides(tmp_path / "out/current")
    assert found["zopy"] == found["a007"] == found["copy007"]
    assert read_build_info(tmp_path / "out/current").unread == 0


def test_a_fault_of_the_source_as_a_whole_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a decoder that takes too much memory."""

    def take(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("tasks.dataset.modalities.image_text.measure", take)
    config = make(tmp_path / "raw", copies(2), splits=CONTENT)
    with pytest.raises(TarmacError, match="not enough memory on this machine to convert it; lower"):
        looks.measure_looks(_tasks(config, tmp_path / "out/staging")[0])


def _tasks(config: Config, staging: Path) -> list[looks.LookTask]:
    staging.mkdir(parents=True)
    return list(looks.RawLooks(config, planned(config, staging), ["source"])._tasks(config))


def test_tasks_are_cut_by_bytes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make(tmp_path / "raw", singles(40))
    sizes = sorted(path.stat().st_size for path in (tmp_path / "raw").glob("*.png"))
    monkeypatch.setattr(looks, "TASK_BYTES", 2 * sizes[-1])
    monkeypatch.setattr(looks, "TASKS_PER_WORKER", 0.1)
    tasks = _tasks(config, tmp_path / "out/staging")
    assert {len(task.numbers) for task in tasks} <= {1, 2, 3} and len(tasks) >= 14
    assert [number for task in tasks for number in task.numbers] == list(range(1, 41))


def test_too_many_samples_to_compare_are_refused_before_any_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "MOST_COMPARED", 7)
    config = make(tmp_path / "raw", copies(4), splits=CONTENT)
    refused = (
        "dataset.splits.group_by: content compares all samples in memory, and 8 are more than 7; group them "
        "by a column of the source, or build several datasets"
    )
    for asked in (build, forecast):
        with pytest.raises(UsageError) as error:
            asked(config)
        assert str(error.value) == refused


def test_rows_of_containers_are_grouped_too(tmp_path: Path) -> None:
    config = parquet(tmp_path / "raw", raw.png(1))
    config = changed(config, splits=Splits.model_validate({"val": 0.5, "group_by": "content"}))
    reading = forecast(config).reading
    assert reading is not None and reading.to_compare == COUNT
    assert measured(config) == COUNT
    assert len(set(sides(tmp_path / "out/current").values())) == 1


def test_a_torn_picture_does_not_keep_others_from_their_group(tmp_path: Path) -> None:
    config = make(tmp_path / "raw", copies(12), splits=CONTENT, reject_budget=0.2)
    (tmp_path / "raw" / "a003.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    built = build(config)
    assert built.rejects == {"image.undecodable": 1}
    found = sides(built.version)
    assert all(found[f"a{number:03d}"] == found[f"copy{number:03d}"] for number in range(12) if number != 3)


def test_a_forecast_knows_the_groups_and_what_is_to_be_compared(tmp_path: Path) -> None:
    rules = {"splits": CONTENT, "shard": {"samples": 4}}
    first = forecast(make(tmp_path / "raw", copies(20), **rules)).work
    assert first is not None and first.to_compare == 40
    assert first.compare_seconds == pytest.approx(first.seconds) and first.seconds > 0
    published(make(tmp_path / "raw", copies(20), **rules))
    config = make(tmp_path / "raw", {**copies(20), "new.png": noise(50)}, **rules)
    work = forecast(config).work
    assert work is not None and work.to_compare == 1
    built = build(config)
    assert work.to_convert_shards == built.shards_rewritten < built.shards / 2
