"""Single shards of a version are made again from their source, as a repair needs it."""

from pathlib import Path

import pytest

from tasks.core.files import blake3_file
from tasks.core.schema import Config
from tasks.dataset.building.builder import build, list_named
from tasks.dataset.building.conversion.sidecar import first
from tasks.dataset.version.layout import INPUTS
from tasks.dataset.version.tables import ArrowBatches, read_shards
from tests.dataset import raw
from tests.dataset.building.prepared import parquet, pictures


def containers(tmp_path: Path) -> Config:
    return parquet(tmp_path / "raw")


@pytest.mark.parametrize("make", [pictures, containers])
def test_shards_come_out_as_they_were(make: object, tmp_path: Path) -> None:
    config: Config = make(tmp_path)  # type: ignore[operator]
    version = build(config).version
    seals = {shard.name: shard.blake3 for shard in read_shards(version)}
    keys = {first(table, "tar"): table.column("key").to_pylist() for table in ArrowBatches(version / INPUTS)}
    wanted = {name: keys[name] for name in ("train/000000.tar", "train/000002.tar", "val/000000.tar")}
    (tmp_path / "again").mkdir()
    found = list_named(config, wanted, tmp_path / "again")
    assert (list(found.missing), found.rejects) == ([], {})
    made = {shard.split: shard for shard in found.convert()}
    assert made.keys() == wanted.keys()
    for name, shard in made.items():
        assert shard.sidecar.column("key").to_pylist() == wanted[name]
        assert shard.tar is not None and blake3_file(shard.tar) == seals[name]


def test_samples_that_are_gone_are_named(tmp_path: Path) -> None:
    config = pictures(tmp_path)
    raw.write_table(tmp_path / "raw", [("0001.png", "one", "x"), ("", "two", "x")])
    (tmp_path / "again").mkdir()
    found = list_named(config, {"train/000000.tar": ["0001", "0002"]}, tmp_path / "again")
    assert list(found.missing) == ["0002"]
    [shard] = found.convert()
    assert shard.split == "train/000000.tar" and shard.sidecar.num_rows == 1 and shard.tar is not None
