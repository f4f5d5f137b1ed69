"""Versions of tars that others wrote, here or on a web server: verified, shown and set aside where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasks.core.errors import TarmacError, UsageError
from tasks.core.quarantine_file import Quarantined
from tasks.core.remote import clients
from tasks.dataset.indexing import index_tars
from tasks.dataset.repair.run import repair
from tasks.dataset.sample_reader import SampleReader
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import quarantine
from tests.loader import transforms
from tests.loader.conftest import flip, members_of, write_tar
from tests.loader.feeds import feed_of
from tests.loader.shard_server import Server, refused, serving

SHARDS = [3, 5, 4]
COUNT = sum(SHARDS)


@dataclass(frozen=True)
class Indexed:
    dataset: Path
    version: Path
    tars: Path
    server: Server | None

    @property
    def is_remote(self) -> bool:
        return self.server is not None


@pytest.fixture(params=["here", "remote"])
def indexed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Indexed]:
    monkeypatch.setattr(clients, "PAUSE_S", 0.01)
    monkeypatch.setenv("TARMAC_CACHE", str(tmp_path / "cache"))
    number, tars = 0, tmp_path / "tars"
    for shard, size in enumerate(SHARDS):
        write_tar(tars / f"{shard}.tar", {f"k{n:06d}": members_of(n) for n in range(number, number + size)})
        number += size
    with serving(tars) as server:
        location = f"{server.address}/{{0..2}}.tar" if request.param == "remote" else str(tars)
        version = index_tars({"train": location}, tmp_path / "data")
        for copy in (tmp_path / "cache").glob("*.tar"):
            copy.unlink()
        yield Indexed(tmp_path / "data", version, tars, server if request.param == "remote" else None)


def found(indexed: Indexed, level: str = "default") -> set[tuple[str, str | None, str | None]]:
    report = verify(indexed.dataset, level)  # type: ignore[arg-type]
    return {(one.code, one.where.get("shard"), one.where.get("key")) for one in report.findings}


def test_sound_versions_are_sound_at_every_level_and_their_samples_are_shown(indexed: Indexed) -> None:
    for level in ("quick", "default", "full"):
        assert found(indexed, level) == set()
    shown = [SampleReader(indexed.version, "train").read(row) for row in range(COUNT)]
    assert [one.members["txt"] for one in shown] == [b"caption %d" % number for number in range(COUNT)]


def test_what_happened_to_a_tar_is_named(indexed: Indexed) -> None:
    flip(indexed.tars / "1.tar", b"caption 4")
    (indexed.tars / "2.tar").unlink()
    missing = ("shard.missing", "train/000002.tar", None)
    assert found(indexed, "quick") == {missing}
    changed = {
        ("shard.checksum", "train/000001.tar", None),
        ("member.checksum", "train/000001.tar", "k000004"),
    }
    assert found(indexed) == {missing, *changed}
    path = indexed.tars / "0.tar"
    path.write_bytes(path.read_bytes()[:-1024] + b"x" + bytes(1023))
    assert ("shard.checksum", "train/000000.tar", None) in found(indexed), "behind all samples as well"
    remedies = {one.remedy for one in verify(indexed.dataset).findings}
    assert all("`tarmac index` again" in remedy for remedy in remedies)


def test_foreign_tars_are_not_repaired_but_bad_samples_are_left_out(indexed: Indexed) -> None:
    flip(indexed.tars / "1.tar", b"caption 4")
    with pytest.raises(
        UsageError, match=r"an index of tars that others wrote.*--quarantine alone leaves bad"
    ):
        repair(indexed.dataset)
    repaired = repair(indexed.dataset, quarantines=True)
    gone = {f"k{number:06d}" for number in range(3, 8)} if indexed.is_remote else {"k000004"}
    assert repaired.ok and repaired.aside.now == len(gone)
    left = quarantine.of_version(
        indexed.version, quarantine.read_quarantine(indexed.dataset / quarantine.NAME)
    )
    assert {one.key for one in left} == gone
    for reader in ("indexed", "streaming"):
        assert keys(indexed, reader, left) == {f"k{number:06d}" for number in range(COUNT)} - gone


def keys(indexed: Indexed, reader: str, left: list[Quarantined]) -> set[str]:
    feed = feed_of(
        indexed.version, transforms.plain, reader=reader, batch_size=1, quarantined=left, shuffle="none"
    )
    with feed.train() as batches:
        return {key for _ in range(3 * COUNT) for key in next(batches)["key"]}


def test_a_server_that_is_down_is_no_fault_of_the_tars(indexed: Indexed) -> None:
    if indexed.server is None:
        pytest.skip("only a remote one has a server")
    indexed.server.fault = refused
    with pytest.raises((TarmacError, OSError), match="the store answers 500"):
        verify(indexed.dataset)
    with pytest.raises((TarmacError, OSError), match="the store answers 500") as caught:
        repair(indexed.dataset, quarantines=True)
    assert "permissions and disk" not in str(caught.value)
