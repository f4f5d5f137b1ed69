"""What a mirror is sent; tests/system/test_s3.py sends more to a real server."""

import sys
from pathlib import Path

import pytest

from tasks.core.errors import UsageError
from tasks.dataset.building.builder import build
from tasks.dataset.version import mirror
from tasks.dataset.version.mirror import Transfer, plan_transfers
from tests import s3
from tests.dataset import raw

SIZES = {"build.json": 5, "manifest.json": 7, "train/000000.tar": 100, "train/000001.tar": 200}
SHAS = {"train/000000.tar": "a", "train/000001.tar": "b"}


def test_all_goes_to_a_mirror_that_holds_nothing() -> None:
    assert plan_transfers(SIZES, SHAS, {}, {}) == [Transfer(name, size, "") for name, size in SIZES.items()]


def test_what_is_there_stays_and_what_was_torn_is_sent_again() -> None:
    there = {**SIZES, "train/000001.tar": 199}
    names = [one.name for one in plan_transfers(SIZES, SHAS, there, {})]
    assert names == ["build.json", "manifest.json", "train/000001.tar"]


def test_tables_are_sent_each_time() -> None:
    """A version that is published again may have others of the same size."""
    sizes = {**SIZES, "rejects.parquet": 9, "index/train.npy": 9}
    sent = {one.name for one in plan_transfers(sizes, SHAS, sizes, {})}
    assert sent == {name for name in sizes if not name.endswith(".tar")}


@pytest.mark.system
def test_a_version_that_is_published_again_is_whole_in_the_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.pictures(tmp_path / "raw", 20)
    version = build(raw.config(tmp_path / "raw", tmp_path / "data")).version
    with s3.moto_server(tmp_path / "log") as port, s3.reached_through(port, monkeypatch):
        s3.put(tmp_path / "nothing", "bucket")
        mirror.publish(version, "s3://bucket/x", 2)
        rejects = version / "rejects.parquet"
        rejects.write_bytes(rejects.read_bytes()[::-1])
        mirror.publish(version, "s3://bucket/x", 2)
        there = s3.objects("bucket")
        for path in (path for path in version.rglob("*") if path.is_file()):
            assert there[f"x/versions/{version.name}/{path.relative_to(version)}"] == path.read_bytes()


def test_a_shard_that_another_version_holds_is_copied_there() -> None:
    plan = plan_transfers(SIZES, SHAS, {}, {"b": "s3://x/versions/old/train/000009.tar"})
    assert {one.name: one.copied_from for one in plan if one.copied_from} == {
        "train/000001.tar": "s3://x/versions/old/train/000009.tar"
    }


def test_a_mirror_that_cannot_be_written_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("https://host/x", "data/mirror"):
        with pytest.raises(UsageError, match=r"^dataset\.mirror: "):
            mirror.check_mirror(address)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match=r"^dataset\.mirror: gs:// .*pip install 'tarmac\[gs\]'"):
        mirror.check_mirror("gs://bucket/x")
