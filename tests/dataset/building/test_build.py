import json
import os
import shutil
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.lock import Lease
from tasks.core.schema import Config
from tasks.dataset.building.builder import PRELOAD, build, is_up_to_date
from tasks.dataset.building.conversion.convert import Conversion, convert
from tasks.dataset.building.conversion.sidecar import first
from tasks.dataset.building.conversion.staging import converted_shards, write_rules
from tasks.dataset.building.forecast import forecast
from tasks.dataset.building.listing import SourceListing
from tasks.dataset.keys import shard_hash
from tasks.dataset.tar.format import parse_sample
from tasks.dataset.version import versions
from tasks.dataset.version.index import INDEX, read_index
from tasks.dataset.version.layout import FRESH, shard_name
from tests.dataset import raw
from tests.dataset.building.prepared import changed, pictures, planned, published

COUNT = 150


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    raw.pictures(tmp_path / "raw", COUNT)
    return tmp_path / "raw"


def from_nothing(config: Config, output: Path) -> dict[str, str]:
    """The contents of a version that is built in an empty folder."""
    return raw.contents(build(changed(config, output=output)).version)


def samples_of(version: Path, split: str) -> dict[str, dict[str, bytes]]:
    """Every sample of a split, read as a loader reads it."""
    found = {}
    for entry in read_index(version, split):
        with (version / shard_name(split, int(entry["shard"]))).open("rb") as file:
            span = os.pread(file.fileno(), int(entry["length"]), int(entry["offset"]))
        assert google_crc32c.value(span) == entry["crc32c"]
        sample = parse_sample(span)
        found[sample.key] = sample.members
    return found


def test_every_raw_sample_can_be_read_back(folder: Path, tmp_path: Path) -> None:
    version = build(raw.config(folder, tmp_path / "out")).version
    found = samples_of(version, "train") | samples_of(version, "val")
    assert len(found) == COUNT
    for number in range(COUNT):
        assert found[f"{number:04d}"] == {
            "png": raw.png(number),
            "txt": f"picture {number}".encode(),
            "json": json.dumps({"label": f"label {number % 3}"}).encode(),
        }


def test_the_tables_agree_with_the_shards(folder: Path, tmp_path: Path) -> None:
    result = build(raw.config(folder, tmp_path / "out"))
    version = result.version
    manifest = versions.read_manifest(version)
    assert (result.read, result.accepted, result.rejected) == (COUNT, COUNT, 0)
    assert version.name == versions.current(tmp_path / "out") or result.previous is None
    shards = pq.read_table(version / "shards.parquet").to_pylist()
    for split, summary in manifest.splits.items():
        mine = [shard for shard in shards if shard["split"] == split]
        assert [shard["name"] for shard in mine] == [shard_name(split, n) for n in range(summary.shards)]
        assert all((version / shard["name"]).stat().st_size == shard["bytes"] for shard in mine)
        sizes = json.loads((version / split / "sizes.json").read_text())
        assert sizes == {f"{n:06d}.tar": shard["samples"] for n, shard in enumerate(mine)}
        assert all(count <= 16 for count in sizes.values())
        index = np.load(version / "index" / f"{split}.npy")
        assert index.dtype == INDEX and index.itemsize == 24 and len(index) == summary.samples
        table = pq.read_table(version / "samples" / f"{split}.parquet").to_pydict()
        assert table["shard"] == index["shard"].tolist()
        assert table["row"] == list(range(len(index)))
        assert table["width"] == [12] * len(index)
        assert list(samples_of(version, split)) == table["key"]
        assert table["key"] == sorted(table["key"], key=shard_hash), "shards are in the order of key hashes"


def test_workers_leave_no_trace(folder: Path, tmp_path: Path) -> None:
    one = build(raw.config(folder, tmp_path / "one", workers=1)).version
    four = build(raw.config(folder, tmp_path / "four", workers=4)).version
    assert one.name == four.name
    assert raw.contents(one, without=("build.json",)) == raw.contents(four, without=("build.json",))
    assert (one / "build.json").read_text() != (four / "build.json").read_text()


def test_shards_are_drafted_in_order_while_later_ones_are_converted(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out")
    staging = tmp_path / "staging"
    staging.mkdir()
    rules = write_rules(staging, config.dataset)
    catalogue = planned(config, staging)
    order = [2, 0, 1, *reversed(range(3, catalogue.planned))]
    found: list[int] = []

    def converted() -> Iterator[int]:
        for ordinal in order:
            convert(Conversion(staging, rules, (ordinal,)))
            found.append(ordinal)
            yield ordinal

    given = [
        (first(shard.sidecar, "planned"), len(found))
        for shard in converted_shards(catalogue, {}, staging, converted())
    ]
    assert [digest for digest, _ in given] == [shard.digest for shard in catalogue.shards()]
    assert [after for _, after in given] == [2, 3, 3, *[len(order)] * (len(order) - 3)]
    catalogue.close()


def test_what_workers_are_forked_from_is_there() -> None:
    assert find_spec(PRELOAD) is not None, "the system would start workers without it, slowly"


def test_place_and_time_leave_no_trace(folder: Path, tmp_path: Path) -> None:
    version = build(raw.config(folder, tmp_path / "out")).version
    raw.pictures(tmp_path / "moved", COUNT)
    for path in (tmp_path / "moved").iterdir():
        os.utime(path, (1e9, 1e9))
    assert raw.contents(build(raw.config(tmp_path / "moved", tmp_path / "out2")).version) == raw.contents(
        version
    )


def test_a_second_build_does_nothing_and_reports_that(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out")
    assert is_up_to_date(config) is None
    first = published(config)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    image = folder / "0007.png"
    status = image.stat()
    image.write_bytes(bytes(status.st_size))  # would be a reject if anybody looked
    os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = published(config)
    assert second.up_to_date and second.shards_rewritten == 0
    assert (second.version, second.digest) == (first.version, first.digest)
    assert is_up_to_date(config) == first.version
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    noted = {tmp_path / "out" / name for name in ("current", FRESH)}
    assert after == before | {path: after[path] for path in noted}


def test_a_change_rewrites_few_shards_and_equals_a_build_from_nothing(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out")
    first = published(config)
    rows = raw.pictures(folder, COUNT)  # writes all files again, with new times
    (folder / "0003.png").write_bytes(raw.png(999))
    rows[11] = (rows[11][0], "another caption", rows[11][2])
    del rows[20]
    (folder / "new.png").write_bytes(raw.png(1000))
    raw.write_table(folder, [*rows, ("new.png", "a new one", "x")])
    os.utime(folder / "0004.png", ns=(1, 1))
    second = published(config)
    assert second.previous == first.version.name != second.version.name
    assert raw.contents(second.version) == from_nothing(config, tmp_path / "fresh")
    rows[5] = (rows[5][0], "changed again", rows[5][2])
    raw.write_table(folder, [*rows, ("new.png", "a new one", "x")])
    third = published(config)
    assert third.shards_rewritten == 1
    assert third.shards == second.shards > 10
    assert raw.contents(third.version) == from_nothing(config, tmp_path / "fresh2")
    shared = {os.stat(path).st_ino for path in second.version.glob("*/*.tar")}
    shared &= {os.stat(path).st_ino for path in third.version.glob("*/*.tar")}
    assert len(shared) == second.shards - 1, "unchanged shards are hard links"


def test_a_touched_file_is_read_again_and_gives_the_same_version(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out")
    first = published(config)
    os.utime(folder / "0004.png", ns=(1, 1))
    assert is_up_to_date(config) is None
    second = published(config)
    assert second.version == first.version and second.shards_rewritten == 1
    assert is_up_to_date(config) == first.version


def test_rejects_follow_their_lines(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out")
    (folder / "0004.png").unlink()
    first = published(config)
    table = (folder / "captions.csv").read_text()
    (folder / "captions.csv").write_text(table.replace("\n", "\n\n", 1))
    second = published(config)
    assert second.version == first.version and second.shards_rewritten == 0
    places = [row["source"] for row in pq.read_table(second.version / "rejects.parquet").to_pylist()]
    assert places == ["captions.csv:7"]
    assert raw.contents(second.version) == from_nothing(config, tmp_path / "fresh")
    assert is_up_to_date(config) == second.version


def test_rules_that_shape_no_sample_rewrite_no_shard(folder: Path, tmp_path: Path) -> None:
    first = published(raw.config(folder, tmp_path / "out"))
    second = published(raw.config(folder, tmp_path / "out", reject_budget=0.2, keep=5))
    assert second.up_to_date and second.version == first.version
    third = published(raw.config(folder, tmp_path / "out", private=True))
    assert third.version == first.version and third.shards_rewritten == 0
    fourth = published(raw.config(folder, tmp_path / "out", image={"encode": "jpg"}))
    assert fourth.shards_rewritten == fourth.shards


def test_a_lost_or_cut_shard_is_made_again(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out")
    first = published(config)
    whole = raw.contents(first.version)
    (first.version / "train" / "000001.tar").unlink()
    os.truncate(first.version / "train" / "000002.tar", 512)
    assert is_up_to_date(config) is None
    second = published(config)
    assert second.version == first.version and second.shards_rewritten == 2
    assert raw.contents(second.version) == whole


def test_a_lost_shard_is_not_taken_from_another_version(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out")
    published(config.model_copy(update={"name": "other"}))
    second = published(config)
    whole = raw.contents(second.version)
    path = second.version / "train" / "000001.tar"
    with path.open("r+b") as file:  # the same file under two names: both are damaged
        file.write(b"damage")
    path.unlink()
    assert published(config).shards_rewritten == 1
    assert raw.contents(second.version) == whole


@pytest.mark.parametrize("image", [{"encode": "jpg"}, {"max_side": 8}])
def test_bytes_cannot_be_a_maximum_of_what_is_re_encoded(
    folder: Path, tmp_path: Path, image: dict[str, object]
) -> None:
    config = raw.config(folder, tmp_path / "out", shard={"bytes": "20KB"}, image=image)
    with pytest.raises(UsageError, match=r"dataset\.shard\.bytes.*use dataset\.shard\.samples"):
        build(config)
    assert not (tmp_path / "out").exists()


def test_the_listing_reports_its_progress(folder: Path, tmp_path: Path) -> None:
    rows = [(f"{number}.png", "absent", "") for number in range(2500)]
    raw.write_table(folder, rows)
    seen: list[tuple[int, int]] = []
    config = raw.config(folder, tmp_path / "out")
    listing = SourceListing(config, tmp_path, lambda done, total, note: seen.append((done, total)))
    listing.survey()
    listing.catalogue.close()
    assert seen == [(1000, 0), (2000, 0)]


def test_the_sources_order_can_be_kept(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out", shard={"samples": 20, "order": "source"}, splits={})
    result = published(config)
    assert list(samples_of(result.version, "train")) == [f"{number:04d}" for number in range(COUNT)]
    assert result.shards == 8
    rows = raw.pictures(folder, COUNT)
    for name, _, _ in rows:
        os.utime(folder / name, ns=(5, 5))
    published(config)
    raw.write_table(folder, [*rows, ("x.png", "appended", "")])
    (folder / "x.png").write_bytes(raw.png(1))
    assert published(config).shards_rewritten == 1


def test_bytes_are_a_maximum(folder: Path, tmp_path: Path) -> None:
    for order in ("hash", "source"):
        version = build(
            raw.config(folder, tmp_path / order, shard={"bytes": "20KB", "order": order}, splits={})
        ).version
        sizes = [path.stat().st_size for path in (version / "train").glob("*.tar")]
        assert max(sizes) <= 20_000 and len(sizes) > 5


def test_filtered_samples_are_counted_and_not_opened(folder: Path, tmp_path: Path) -> None:
    for number in range(0, COUNT, 3):
        (folder / f"{number:04d}.png").unlink()
    result = build(raw.config(folder, tmp_path / "out", filter={"label": ["label 1", "label 2"]}))
    assert (result.read, result.accepted, result.filtered, result.rejected) == (150, 100, 50, 0)


def test_several_sources_make_one_dataset(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "a", 20)
    raw.pictures(tmp_path / "b", 22)
    table = {"kind": "table", "image": "file", "caption": "caption"}
    sources = [{**table, "path": str(tmp_path / name / "captions.csv")} for name in ("a", "b")]
    config = raw.config(tmp_path, tmp_path / "out", source=None, sources=sources, reject_budget=0.9)
    result = build(config)
    assert (result.accepted, dict(result.rejects)) == (22, {"key.duplicate": 20})


def test_volumes_are_built_and_patients_stay_together(tmp_path: Path) -> None:
    raw.volumes(tmp_path / "ct", 24)
    splits = {"val": 0.4, "group_by": "patient"}
    config = raw.volume_config(tmp_path / "ct", tmp_path / "out", workers=2, splits=splits)
    result = published(config)
    assert result.accepted == 24
    patients = {
        split: {
            json.loads(members["json"])["patient"] for members in samples_of(result.version, split).values()
        }
        for split in ("train", "val")
    }
    assert patients["train"] and patients["val"]
    assert not patients["train"] & patients["val"]
    assert published(config).up_to_date
    reports = tmp_path / "ct" / "reports.csv"
    reports.write_text(reports.read_text().replace("Healthy p3_scan_1", "Effusion"))
    assert published(config).shards_rewritten == 1


def test_volume_shards_keep_their_maximum_although_files_are_compressed(tmp_path: Path) -> None:
    raw.volumes(tmp_path / "ct", 6)
    for path in (tmp_path / "ct").glob("*.npz"):
        np.savez_compressed(path, arr_0=np.tile(np.float32([-1000, 40]), (8, 32, 16)))
    config = raw.volume_config(tmp_path / "ct", tmp_path / "out", shard={"bytes": "40KB"}, splits={})
    sizes = [path.stat().st_size for path in (build(config).version / "train").glob("*.tar")]
    assert max(sizes) <= 40_000
    assert len(sizes) >= 3


def test_a_column_names_the_split(folder: Path, tmp_path: Path) -> None:
    rows = [
        (name, caption, ("train", "dev", "test")[n % 3])
        for n, (name, caption, _) in enumerate(raw.pictures(folder, 30))
    ]
    raw.write_table(folder, rows)
    result = build(raw.config(folder, tmp_path / "out", splits={"from": "label"}))
    splits = versions.read_manifest(result.version).splits
    assert {name: split.samples for name, split in splits.items()} == {"train": 10, "dev": 10, "test": 10}


def test_a_build_waits_for_the_one_that_holds_the_dataset(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[str] = []
    other = Lease(tmp_path / "out" / "lease.json")
    other.acquire()
    waiting = threading.Event()

    def progress(done: int, total: int, note: str) -> None:
        notes.append(note)
        if "waiting" in note:
            waiting.set()

    thread = threading.Thread(target=build, args=(raw.config(folder, tmp_path / "out"), progress))
    thread.start()
    assert waiting.wait(10)
    assert not (tmp_path / "out" / "versions").exists()
    other.release()
    thread.join(60)
    assert any(f"process {os.getpid()}" in note for note in notes), "it names the holder"
    warnings = [(record.name, record.levelname) for record in caplog.records if "waiting" in record.message]
    assert warnings == [("tasks.dataset.building.builder", "WARNING")]
    assert len(list((tmp_path / "out" / "versions").iterdir())) == 1
    assert not (tmp_path / "out" / "lease.json").exists()


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({"filter": {"lable": "x"}}, r"dataset\.filter.*did you mean label\?"),
        ({"splits": {"val": 0.1, "group_by": "patient"}}, r"dataset\.splits\.group_by"),
        ({"splits": {"from": "labels"}}, r"dataset\.splits\.from.*did you mean label"),
    ],
)
def test_a_config_that_does_not_fit_writes_nothing(
    folder: Path, tmp_path: Path, dataset: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        build(raw.config(folder, tmp_path / "out", **dataset))
    assert not (tmp_path / "out").exists()


def test_what_somebody_else_keeps_where_a_build_works_stays(tmp_path: Path) -> None:
    config = pictures(tmp_path, 20)
    staging = tmp_path / "out" / "staging"
    staging.mkdir(parents=True)
    for name in ("thesis.doc", "dataset.json", "000.tar"):
        (staging / name).write_text('{"labels": []}')
    with pytest.raises(UsageError, match=r"out/staging holds files that no build wrote, such as 000.tar"):
        build(config)
    assert len(list(staging.iterdir())) == 3
    shutil.rmtree(staging)
    staging.touch()
    with pytest.raises(UsageError, match=r"out/staging"):
        build(config)
    staging.unlink()
    staging.mkdir()
    (staging / ".dataset.json.x1.tmp").touch()  # of a build that was killed at its first step
    assert build(config).accepted == 20


@pytest.mark.parametrize("folder", ["staging/photos", "versions", "repair/x"])
def test_a_source_may_not_lie_where_a_build_works(tmp_path: Path, folder: str) -> None:
    raw.pictures(tmp_path / "out" / folder, 20)
    with pytest.raises(UsageError, match=r"dataset\.output.*must not lie there"):
        build(raw.config(tmp_path / "out" / folder, tmp_path / "out"))
    assert len(list((tmp_path / "out" / folder).iterdir())) == 21


def test_an_impossible_output_is_reported_before_any_work(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 20)
    (tmp_path / "file").touch()
    for output in (tmp_path / "file", tmp_path / "file" / "out"):
        for command in (build, forecast):
            with pytest.raises(UsageError, match=r"dataset\.output: \S+/file is a file"):
                command(raw.config(tmp_path / "raw", output))
    copied = tmp_path / "copied"
    (copied / "current").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"copied/current is a folder where a link belongs"):
        build(raw.config(tmp_path / "raw", copied))


def test_a_source_without_samples_leaves_the_old_version(folder: Path, tmp_path: Path) -> None:
    config = raw.config(folder, tmp_path / "out")
    first = published(config)
    with pytest.raises(DataError, match="150 filtered"):
        build(raw.config(folder, tmp_path / "out", filter={"label": "no such"}))
    raw.write_table(folder, [])
    with pytest.raises(DataError, match="holds no samples"):
        build(config)
    assert versions.current(tmp_path / "out") == first.version
    assert first.version.is_dir()
