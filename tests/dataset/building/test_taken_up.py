"""What a build reuses of an earlier one that was killed, refused or had another config, and what it does not."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Config
from tasks.dataset.building import builder
from tasks.dataset.building.builder import build, is_up_to_date
from tasks.dataset.building.listed.catalogue import NAME
from tasks.dataset.building.listed.spill import FOLDER as SPILL
from tests.dataset import raw
from tests.dataset.building.prepared import COUNT, changed, parquet, pictures, published

BAD = 3


def with_rejects(folder: Path) -> Config:
    """BAD of COUNT samples are no images, which the budget has just room for."""
    config = parquet(folder)
    rows = {
        "key": [f"bad {number}" for number in range(BAD)],
        "image": [b"no image"] * BAD,
        "caption": ["x"] * BAD,
    }
    pq.write_table(pa.table(rows), folder / "bad.parquet")
    return changed(config, reject_budget=(BAD + 0.5) / (COUNT + BAD))


def killed_at(name: str, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that ends where it would call this step."""

    def end(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(builder, name, end)
        with pytest.raises(KeyboardInterrupt):
            build(config)


@pytest.mark.parametrize("step", ["convert_all", "note_rejects", "build_facts"])
def test_rejects_count_once_however_often_a_build_is_killed(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_rejects(tmp_path / "raw")
    for _ in range(2):
        killed_at(step, config, monkeypatch)
    result = build(config)
    assert (result.read, result.accepted, result.rejected) == (COUNT + BAD, COUNT, BAD)


def test_a_loss_that_was_refused_can_be_accepted(tmp_path: Path) -> None:
    config = with_rejects(tmp_path / "raw")
    published(config)
    (tmp_path / "raw" / "0.parquet").unlink()
    config = changed(config, reject_budget=(BAD + 0.5) / (2 * COUNT // 3 + BAD))
    with pytest.raises(DataError, match="--accept-loss"):
        build(config)
    assert build(config, accept_loss=True).accepted == 2 * COUNT // 3


def test_a_lost_spill_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parquet(tmp_path / "raw")
    killed_at("convert_all", config, monkeypatch)
    next((tmp_path / "out/staging" / SPILL).iterdir()).unlink()
    assert build(config).accepted == COUNT


def test_a_torn_catalogue_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parquet(tmp_path / "raw")
    killed_at("convert_all", config, monkeypatch)
    (tmp_path / "out/staging" / NAME).write_bytes(b"torn" * 100)
    assert build(config).accepted == COUNT


def test_rehash_takes_up_no_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parquet(tmp_path / "raw")
    path = tmp_path / "raw" / "0.parquet"
    pq.write_table(pq.read_table(path), path, compression="none", use_dictionary=False)
    killed_at("convert_all", config, monkeypatch)
    before = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"picture 3", b"picture X"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.read_bytes() != content
    calm = build(changed(config, output=tmp_path / "calm")).version
    assert raw.contents(build(config, rehash=True).version) == raw.contents(calm)


def test_shards_of_another_config_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_at("note_rejects", pictures(tmp_path), monkeypatch)
    result = build(raw.config(tmp_path / "raw", tmp_path / "out", image={"encode": "jpg"}))
    assert result.shards_rewritten == result.shards
    assert not (tmp_path / "out/staging").exists()


def test_a_new_source_leaves_the_shards_of_the_others(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "a", 120)
    first = raw.config(tmp_path / "a", tmp_path / "out", shard={"samples": 8})
    assert published(first).shards > 20
    raw.write_table(tmp_path / "b", [(f"new{n}.png", "new", "x") for n in range(2)])
    for number in range(2):
        (tmp_path / "b" / f"new{number}.png").write_bytes(raw.png(900 + number))
    one = json.loads(first.dataset.model_dump_json())["source"]
    two = one | {"path": str(tmp_path / "b" / "captions.csv")}
    block = {"source": None, "sources": [one, two], "shard": {"samples": 8}}
    assert published(raw.config(tmp_path / "a", tmp_path / "out", **block)).shards_rewritten <= 4


def test_what_becomes_private_is_private(tmp_path: Path) -> None:
    config = pictures(tmp_path, 20)
    published(config)
    private = changed(config, private=True)
    assert is_up_to_date(private) is None
    result = published(private)
    assert result.shards_rewritten == 0
    assert json.loads((result.version / "build.json").read_text())["private"] is True
    assert is_up_to_date(private) == result.version


def test_rehash_leaves_rejects_that_are_still_so(tmp_path: Path) -> None:
    config = pictures(tmp_path, 40)
    (tmp_path / "raw" / "0007.png").write_bytes(b"no image")
    published(config)
    assert build(config, rehash=True).shards_rewritten == 0


@pytest.mark.parametrize("pattern", ["**/*.parquet", "*/*/*/*.parquet", "o*", "**"])
def test_a_dataset_lies_where_no_pattern_of_its_source_finds_it(tmp_path: Path, pattern: str) -> None:
    config = parquet(tmp_path / "raw")
    source = config.dataset.source.model_copy(update={"path": f"{tmp_path}/raw/{pattern}"})
    with pytest.raises(UsageError, match=r"dataset\.output.*inside the source.*put it beside it"):
        build(changed(config, output=tmp_path / "raw" / "out", source=source))


def test_a_dataset_lies_beside_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parquet(tmp_path / "raw")
    with pytest.raises(UsageError, match=r"dataset\.output.*inside the source.*put it beside it") as caught:
        build(changed(config, output=tmp_path / "raw" / "out"))
    named = str(caught.value).rpartition("such as ")[2]
    assert named == f"{tmp_path}/raw-tarmac"
    assert build(changed(config, output=Path(named))).accepted == 60
    shutil.rmtree(tmp_path / "raw")
    raw.pictures(tmp_path / "raw", 20)
    inside = raw.config(tmp_path / "raw", tmp_path / "raw" / "out")
    with pytest.raises(
        UsageError, match=r"dataset\.output.*folder of the table.*put it beside it.*raw-tarmac"
    ):
        build(inside)
    assert not (tmp_path / "raw" / "out").exists()
    monkeypatch.chdir(tmp_path / "raw")  # a project: its table beside the folder of its datasets
    assert build(inside).accepted == 20
    monkeypatch.chdir(tmp_path)
    assert build(inside).shards_rewritten == 0, "a dataset that is there goes on"


def test_filtered_samples_leave_room_in_the_budget(tmp_path: Path) -> None:
    rows = raw.pictures(tmp_path / "raw", 100)
    for number in range(40):
        (tmp_path / "raw" / f"{number:04d}.png").write_bytes(b"no image")
    raw.write_table(tmp_path / "raw", rows + [(f"f{n}.png", "filtered", "other") for n in range(900)])
    labels = {"label": ["label 0", "label 1", "label 2"]}
    result = build(raw.config(tmp_path / "raw", tmp_path / "out", filter=labels, reject_budget=0.05))
    assert (result.read, result.filtered, result.rejected) == (1000, 900, 40)


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 20)
    with pytest.raises(UsageError, match=r"dataset\.output: .* cannot be written"):
        build(raw.config(tmp_path / "raw", Path("/proc/out")))
