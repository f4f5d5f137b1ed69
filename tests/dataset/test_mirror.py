"""What a mirror is sent; tests/system/test_s3.py sends it to a real server."""

import sys

import pytest

from tasks.core.errors import UsageError
from tasks.dataset import mirror
from tasks.dataset.mirror import Transfer, plan_transfers

SIZES = {"build.json": 5, "manifest.json": 7, "train/000000.tar": 100, "train/000001.tar": 200}
SHAS = {"train/000000.tar": "a", "train/000001.tar": "b"}


def test_all_goes_to_a_mirror_that_holds_nothing() -> None:
    assert plan_transfers(SIZES, SHAS, {}, {}) == [Transfer(name, size, "") for name, size in SIZES.items()]


def test_what_is_there_stays_and_what_was_torn_is_sent_again() -> None:
    there = {**SIZES, "train/000001.tar": 199}
    names = [one.name for one in plan_transfers(SIZES, SHAS, there, {})]
    assert names == ["build.json", "manifest.json", "train/000001.tar"]


def test_a_shard_that_another_version_holds_is_copied_there() -> None:
    plan = plan_transfers(SIZES, SHAS, {}, {"b": "s3://x/versions/old/train/000009.tar"})
    assert {one.name: one.twin for one in plan if one.twin} == {
        "train/000001.tar": "s3://x/versions/old/train/000009.tar"
    }


def test_a_mirror_that_cannot_be_written_names_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("https://host/x", "data/mirror"):
        with pytest.raises(UsageError, match=r"^dataset\.mirror: "):
            mirror.check(address)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match=r"^dataset\.mirror: gs:// .*pip install 'tarmac\[gs\]'"):
        mirror.check("gs://bucket/x")
