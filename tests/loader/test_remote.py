"""Tars that others wrote, on a web server: what the readers promise of them, and what its faults become."""

from __future__ import annotations

import json
import os
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.files import blake3_file
from tasks.core.remote import clients, ranges, remote_files, remote_shards
from tasks.core.remote.remote_shards import ShardCache, remote_shard
from tasks.dataset.indexing import index_tars
from tasks.loader.feed import Feed
from tasks.loader.staging import FETCHED_FOR, ShardsAhead
from tests import s3
from tests.disks import small_disk
from tests.loader import transforms
from tests.loader.conftest import members_of, write_tar
from tests.loader.feeds import feed_of
from tests.loader.shard_server import Answer, Server, cut, dripping, hanging, refused, serving
from tests.loader.test_staging import wait_for

SHARDS = [12, 4, 16, 8, 8]
COUNT = sum(SHARDS)
READERS = ["indexed", "streaming"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    number = 0
    for shard, size in enumerate(SHARDS):
        samples = {f"k{n:06d}": members_of(n) for n in range(number, number + size)}
        write_tar(tmp_path / f"web/{shard:05d}.tar", samples)
        number += size
    return tmp_path / "web"


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """With short pauses, blocks of few samples, and an empty cache."""
    monkeypatch.setattr(clients, "PAUSE_S", 0.05)
    monkeypatch.setattr(ranges, "BLOCK", 8192)
    monkeypatch.setattr(remote_files, "BUFFER", 8192)
    monkeypatch.setenv("TARMAC_CACHE", str(tmp_path / "cache"))
    with serving(folder) as server:
        yield server


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that sends nothing is given up in the time of a test."""
    monkeypatch.setattr(ranges, "STALL_S", 1.0)


@pytest.fixture
def version(server: Server, tmp_path: Path) -> Path:
    return index_tars({"train": f"{server.address}/{{00000..00004}}.tar"}, tmp_path / "data")


def empty(cache: Path) -> None:
    for copy in cache.glob("*.tar"):
        copy.unlink()


def feed(version: Path, reader: str, **options: Any) -> Feed:
    return feed_of(version, transforms.whole, **{"batch_size": 12, "seed": 5, "reader": reader, **options})


def keys(feed: Feed, steps: int, start: int = 0) -> list[list[str]]:
    with feed.train(feed.state(start)) as batches:
        return [next(batches)["key"] for _ in range(steps)]


@pytest.mark.parametrize("reader", READERS)
def test_every_sample_comes_once_an_epoch_on_two_ranks(version: Path, tmp_path: Path, reader: str) -> None:
    empty(tmp_path / "cache")
    ranks = [keys(feed(version, reader, rank=rank, world_size=2), 4) for rank in (0, 1)]
    read = Counter(key for rank in ranks for batch in rank for key in batch)
    assert read == dict.fromkeys((f"k{number:06d}" for number in range(COUNT)), 1)


@pytest.mark.parametrize("reader", READERS)
def test_it_goes_on_anywhere_and_on_any_workers(version: Path, reader: str) -> None:
    whole = keys(feed(version, reader), 9)
    workers = 2 if reader == "streaming" else 0
    assert keys(feed(version, reader, workers=workers), 4, 3) == whole[3:7]


def test_a_shard_is_fetched_once_and_its_copy_serves_when_the_server_is_gone(
    version: Path, server: Server, tmp_path: Path
) -> None:
    empty(tmp_path / "cache")
    first = keys(feed(version, "indexed"), 5)
    server.fault = refused
    assert keys(feed(version, "indexed"), 5) == first
    assert not list((tmp_path / "cache").glob("*.part"))


FAULTS: dict[str, tuple[Answer, str]] = {
    "refuses": (refused, "the store answers 500"),
    "hangs": (hanging, "does not answer in time"),
    "drips": (dripping, "does not answer in time"),
    "cuts": (cut, "the connection broke|cannot be reached"),
}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_is_an_error_with_its_address(
    version: Path, server: Server, tmp_path: Path, reader: str, fault: str
) -> None:
    empty(tmp_path / "cache")
    server.fault, cause = FAULTS[fault]
    began = time.monotonic()
    with pytest.raises(DataError, match=rf"http://127.0.0.1:\d+/0000\d\.tar: .*({cause})"):
        keys(feed(version, reader), 5)
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("soon")
def test_a_fault_that_passes_is_tried_again(version: Path, server: Server, tmp_path: Path) -> None:
    whole = keys(feed(version, "streaming"), 5)
    empty(tmp_path / "cache")
    as_asked: Answer = lambda handler, content: False  # noqa: E731
    answers = iter([refused, cut, as_asked, hanging])
    server.fault = lambda handler, content: next(answers, as_asked)(handler, content)
    assert keys(feed(version, "streaming"), 5) == whole


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("how", ["longer", "another stamp", "the same stamp", "gone"])
def test_a_shard_that_changed_since_it_was_indexed_is_named(
    version: Path, folder: Path, tmp_path: Path, reader: str, how: str
) -> None:
    empty(tmp_path / "cache")
    path = folder / "00002.tar"
    content = path.read_bytes()
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    path.write_bytes(content + bytes(512) if how == "longer" else content.replace(b"caption", b"capture"))
    os.utime(path, ns=(0, 0) if how == "another stamp" else times)
    if how == "gone":
        path.unlink()
    match = "no such file" if how == "gone" else "has changed since it was indexed; run `tarmac index` again"
    with pytest.raises(DataError, match=rf"/00002\.tar: .*{match}"):
        keys(feed(version, reader), 5)


def test_a_shard_that_changes_while_it_is_read_is_named(server: Server, folder: Path, tmp_path: Path) -> None:
    """Without an index nothing but the server's own stamp tells."""
    path = folder / "00000.tar"
    shard = remote_shard(f"{server.address}/00000.tar")
    with (
        pytest.raises(DataError, match=r"00000\.tar: has changed while it was read"),
        ShardCache(tmp_path / "cache", 1 << 30).stream(shard) as file,
    ):
        file.read(1)
        os.utime(path, (1, 1))


@pytest.mark.parametrize("cut_at", ["member", "block"])
def test_a_tar_that_was_cut_before_it_was_indexed_is_refused(
    folder: Path, tmp_path: Path, cut_at: str
) -> None:
    path = folder / "00001.tar"
    at = path.read_bytes().index(b"k000015.")
    os.truncate(path, at + (0 if cut_at == "member" else 700))
    with pytest.raises(DataError, match=r"00001\.tar: ends with"):
        index_tars({"train": str(folder)}, tmp_path / "data")


def test_tars_without_an_index_are_counted_first_and_a_cut_one_is_named(server: Server, folder: Path) -> None:
    from tests.loader.test_streaming import keys as read

    urls = [f"{server.address}/{{00000..00004}}.tar"]
    assert len(set(read(urls, 20))) == COUNT
    path = folder / "00001.tar"
    os.truncate(path, path.read_bytes().index(b"k000015."))
    with pytest.raises(DataError, match=r"00001\.tar: truncated, its end blocks are missing"):
        read(urls, 8)


def test_tars_of_this_machine_in_other_formats_are_indexed_where_they_lie(tmp_path: Path) -> None:
    import io

    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(10):
            for suffix, content in members_of(number).items():
                info = tarfile.TarInfo(f"folder/{'long' * 30}ü{number}.{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    version = index_tars({"train": str(tmp_path / "a.tar")}, tmp_path / "data")
    for reader in READERS:
        batch = keys(feed(version, reader, batch_size=10), 1)[0]
        assert sorted(batch) == [f"folder/{'long' * 30}ü{number}" for number in range(10)]


def test_an_index_records_of_a_remote_shard_what_its_format_names(version: Path) -> None:
    written = json.loads((version / "foreign.json").read_bytes())["splits"]["train"]["remote"]
    assert [list(shard) for shard in written] == [["url", "size", "stamp", "blake3"]] * len(SHARDS)


def test_an_address_with_a_signature_is_not_written_down(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which an index would write down"):
        index_tars({"train": f"{server.address}/00000.tar?token=hidden"}, tmp_path / "data")


def test_a_damaged_copy_is_fetched_again(version: Path, tmp_path: Path, server: Server) -> None:
    whole = keys(feed(version, "indexed"), 5)
    remote_shards._cache.cache_clear()  # as in another process
    for copy in (tmp_path / "cache").glob("*.tar"):
        content = copy.read_bytes()
        copy.write_bytes(content.replace(b"caption", b"capture"))
    before = server.asked.total()
    assert keys(feed(version, "indexed"), 5) == whole
    assert server.asked.total() > before


def test_the_cache_keeps_its_size_and_lets_go_what_was_used_longest_ago(
    server: Server, tmp_path: Path
) -> None:
    shards = [remote_shard(f"{server.address}/{number:05d}.tar") for number in range(4)]
    cache = ShardCache(tmp_path / "small", shards[0].size + shards[2].size)
    for number in (0, 1, 0, 2):
        os.close(cache.descriptor(shards[number]))
        taken = sum(path.stat().st_size for path in (tmp_path / "small").iterdir())
        assert taken <= cache.limit()
    kept = {path.name.partition("-")[0] for path in (tmp_path / "small").glob("*.tar")}
    assert kept == {shards[0].cache_key, shards[2].cache_key}
    cache.most_bytes = 100
    with pytest.raises(DataError, match="do not fit into the cache of 100; set TARMAC_CACHE_SIZE"):
        cache.descriptor(shards[3])


def test_what_is_read_ahead_is_bounded(server: Server, folder: Path, tmp_path: Path) -> None:
    (folder / "big.tar").write_bytes(bytes(8192 * 100))
    shard = remote_shard(f"{server.address}/big.tar")
    with remote_shards.Arriving(shard) as arriving:
        assert arriving.read(1)
        last = -1
        while last != server.asked["big.tar"]:  # until it asks for no more
            last = server.asked["big.tar"]
            time.sleep(0.3)
        assert last <= ranges.AHEAD + 3


def copies(cache: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in cache.glob("*.tar")}


def test_the_next_shards_are_fetched_while_one_is_read(version: Path, server: Server, tmp_path: Path) -> None:
    empty(tmp_path / "cache")
    with feed(version, "indexed", batch_size=4, shuffle="none").train() as batches:
        read = next(batches)["key"]
        wait_for(lambda: len(copies(tmp_path / "cache")) == len(SHARDS))
        server.fault = refused
        for _ in range(COUNT // 4 - 1):
            read += next(batches)["key"]
    assert read == [f"k{number:06d}" for number in range(COUNT)]


def test_nothing_fetched_ahead_is_passed_over_while_room_is_made(server: Server, tmp_path: Path) -> None:
    """Room is made by whoever keeps a copy, so it is looked at who has a draft while others begin theirs."""
    shards = [remote_shard(f"{server.address}/{number:05d}.tar") for number in range(len(SHARDS))]
    small, is_over = ShardCache(tmp_path / "small", 1 << 30), threading.Event()

    def make_room() -> None:
        while not is_over.is_set():
            small._make_room(0)

    other = threading.Thread(target=make_room)
    other.start()
    try:
        for _ in range(20):
            empty(small.folder)
            for shard in shards:
                small.fetch_ahead(shard, [], lambda: True)
            assert len(copies(small.folder)) == len(SHARDS)
    finally:
        is_over.set()
        other.join()


def test_no_more_is_fetched_ahead_than_the_cache_holds(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of three shards, of which the first was opened last: what is still to come stays all the same."""
    size = (tmp_path / "web/00000.tar").stat().st_size
    for number in range(6):
        (tmp_path / f"web/same{number}.tar").write_bytes(bytes(size - 1) + bytes([number]))
    shards = [
        replace(one, blake3=blake3_file(tmp_path / f"web/same{number}.tar"))
        for number in range(6)
        if (one := remote_shard(f"{server.address}/same{number}.tar"))
    ]
    monkeypatch.setenv("TARMAC_CACHE_SIZE", f"{3 * size}B")
    small = remote_shards.cache()
    keys_of = [shard.cache_key for shard in shards]
    fetcher = ShardsAhead(lambda positions: [shards[positions.start // FETCHED_FOR % 6]], 0, small)
    fetcher.start()
    wait_for(lambda: copies(small.folder) == set(keys_of[:3]))
    os.close(small.descriptor(shards[0]))
    assert not server.asked["same3.tar"]
    fetcher.reach(FETCHED_FOR)
    wait_for(lambda: keys_of[3] in copies(small.folder))
    assert copies(small.folder) == set(keys_of[1:4])
    fetcher.close()


@pytest.mark.system
@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to mount a file system")
def test_a_full_disk_costs_a_stream_its_copies_and_ends_the_indexed_reader(
    version: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", "8k") as disk:
        monkeypatch.setenv("TARMAC_CACHE", str(disk / "cache"))
        with pytest.raises(DataError, match=r"0000\d\.tar: .*cache has no room for it; set TARMAC_CACHE"):
            keys(feed(version, "indexed"), 4)
        read = keys(feed(version, "streaming"), 4)
        assert len({key for batch in read for key in batch}) == COUNT
        assert not list((disk / "cache").glob("*.[tps]*"))


@pytest.mark.system
@pytest.mark.parametrize("reader", READERS)
def test_a_bucket_gives_every_sample_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    monkeypatch.setenv("TARMAC_CACHE", str(tmp_path / "cache"))
    with s3.moto_server(tmp_path / "log") as port, s3.reached_through(port, monkeypatch):
        s3.put(folder, "bucket")
        version = index_tars({"train": "s3://bucket/{00000..00004}.tar"}, tmp_path / "data")
        empty(tmp_path / "cache")
        assert len({key for batch in keys(feed(version, reader), 4) for key in batch}) == COUNT
        s3.delete("bucket", "00002.tar")
        empty(tmp_path / "cache")
        with pytest.raises(DataError, match=r"s3://bucket/00002\.tar: cannot be read: no such file"):
            keys(feed(version, reader), 4)
