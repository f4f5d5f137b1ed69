"""The shards are plain WebDataset tars: the loader that most trainers use reads them."""

import json
from pathlib import Path

import pytest

from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
from tests.dataset import raw

webdataset = pytest.importorskip("webdataset")


def test_webdataset_reads_every_sample(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 40)
    result = build(raw.config(tmp_path / "raw", tmp_path / "out", splits={}))
    versions.publish(tmp_path / "out", result.version, 3)
    last = versions.read_manifest(result.version).splits["train"].shards - 1
    url = f"{tmp_path}/out/current/train/{{000000..{last:06d}}}.tar"
    samples = {sample["__key__"]: sample for sample in webdataset.WebDataset(url, shardshuffle=False)}
    assert len(samples) == 40
    assert samples["0007"]["png"] == raw.png(7)
    assert samples["0007"]["txt"] == b"picture 7"
    assert json.loads(samples["0007"]["json"]) == {"label": "label 1"}


def test_webdataset_reads_volumes(tmp_path: Path) -> None:
    raw.volumes(tmp_path / "ct", 4)
    result = build(raw.volume_config(tmp_path / "ct", tmp_path / "out", splits={}))
    url = str(result.version / "train" / "000000.tar")
    for sample in webdataset.WebDataset(url, shardshuffle=False):
        assert sample.keys() >= {"txt", "json", "volume.b2nd"}
