"""The same volumes, with their tables, out of a bucket; and the same findings of tars on a web server."""

import importlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.findings import Finding
from tasks.core.remote import ranges
from tasks.core.schema import Config
from tasks.dataset.sources import RawSample, open_sources
from tasks.dataset.tar.format import END
from tasks.dataset.verify import examination, shard
from tasks.dataset.verify.scan import ShardTask
from tasks.dataset.verify.shard import ShardResult, check_shard
from tasks.dataset.verify.verifier import verify
from tests import s3
from tests.dataset.raw import nifti, shards
from tests.dataset.sources.test_shards import faults, items, parts
from tests.web import web_server


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3.moto_server(tmp_path_factory.mktemp("moto") / "log") as port:
        yield port


def with_metadata(config: Config, path: str) -> Config:
    """The config with a table of metadata, over another folder."""
    source = config.dataset.source
    block = source.model_dump() | {"path": path, "metadata": nifti.METADATA}  # type: ignore[union-attr]
    changed = type(source).model_validate(block)  # type: ignore[union-attr, arg-type]
    return config.model_copy(update={"dataset": config.dataset.model_copy(update={"source": changed})})


@pytest.mark.parametrize("kind", ["npz", "nifti"])
def test_a_bucket_gives_the_same_samples(
    kind: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = importlib.import_module(f"tests.dataset.raw.{kind}").make(tmp_path)
    nifti.tables(tmp_path, [f"p{number // 2}_scan_{number % 2}" for number in range(6)])
    with s3.reached_through(port, monkeypatch):
        s3.put(tmp_path, f"scans-{kind}")
        here, there = (
            open_sources(with_metadata(config, path).dataset)[0]
            for path in (str(tmp_path), f"s3://scans-{kind}")
        )
        pairs = zip(*(list(source.items(next(source.containers()))) for source in (here, there)), strict=True)
        for mine, its in pairs:
            assert mine._replace(stat=mine.stat.size) == its._replace(stat=its.stat.size)
            assert there.stored_bytes(its.file, 1, its.content) == here.stored_bytes(
                mine.file, 1, mine.content
            )
            left, right = here.read(mine.file, mine.content), there.read(its.file, its.content)
            assert {name: bytes(part) for name, part in left.items()} == {
                name: bytes(part) for name, part in right.items()
            }


def tars_of_others(folder: Path) -> None:
    """Six, of which four have something wrong with them, each something else; several blocks long."""
    folder.mkdir()
    for number in range(6):
        samples = [
            shards.entry(f"{number}-{key}.{suffix}", os.urandom(2_000) if suffix == "bin" else b"x")
            for key in range(60)
            for suffix in ("bin", "txt")
        ]
        if number == 1:
            samples.append(shards.entry("0-7.bin", b"x") + shards.entry("0-7.txt", b"x"))
        if number == 2:
            del samples[11]
        if number == 3:
            samples[20:24] = [samples[20], samples[22], samples[21], samples[23]]
        content = b"".join(samples) + END
        if number == 4:
            content = content[:100_100]
        (folder / f"{number}.tar").write_bytes(content)


@pytest.mark.parametrize("gives_parts", [True, False])
def test_tars_of_a_web_server_are_judged_in_threads_as_one_after_the_other(
    gives_parts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "BLOCK", 1 << 15)
    tars_of_others(tmp_path / "tars")
    threads: set[int] = set()

    def inspected(task: ShardTask) -> ShardResult:
        threads.add(threading.get_ident())
        return check_shard(task)

    monkeypatch.setattr(shard, "check_shard", inspected)

    def findings(place: str, cores: int) -> list[Finding]:
        threads.clear()
        monkeypatch.setattr(examination, "available_cores", lambda: cores)
        return list(verify(place).findings)

    with web_server(tmp_path / "tars", gives_parts) as (address, _):
        for place in (f"{address}/{{0..5}}.tar", str(tmp_path / "tars")):
            alone = findings(place, cores=1)
            assert threads == {threading.get_ident()}
            for _ in range(3):
                assert findings(place, cores=4) == alone
                assert threads and threading.get_ident() not in threads
            assert [(found.where["shard"], found.code) for found in alone] == [
                ("1.tar", "sample.duplicate_key"),
                ("2.tar", "sample.missing_member"),
                ("3.tar", "sample.split_members"),
                ("3.tar", "sample.split_members"),
                ("4.tar", "shard.truncated"),
            ]


def test_tars_of_a_bucket_are_streamed_and_joined_like_local_ones(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts(tmp_path)
    content = shards.tar_bytes([member for n in range(800) for member in shards.pair(f"{n:05d}", 1)])
    (tmp_path / "x.tar").write_bytes(content)

    def found(root: str, match: str) -> list[RawSample]:
        source = {"key": "json:uid", "join": [{"path": f"{root}/added", "key": "json:uid", "match": match}]}
        return items(f"{root}/images/{{00000..00001}}.tar", "reinforced", source=source)

    with s3.reached_through(port, monkeypatch) as wire:
        s3.put(tmp_path, "raw")
        assert found("s3://raw", "key") == found("s3://raw", "shard") == found(str(tmp_path), "key")
        before = wire.received
        assert faults(items("s3://raw/x.tar")) == [None] * 800
        assert wire.received - before < 1.1 * len(content)
        with pytest.raises(UsageError, match=r"dataset\.source\.path.*00002\.tar"):
            items("s3://raw/images/{00000..00002}.tar")
        wire.cut()
        with pytest.raises(DataError, match="s3://raw"):
            items("s3://raw/x.tar")


def test_a_signature_of_a_tar_is_used_and_never_shown(tmp_path: Path) -> None:
    content = shards.tar_bytes(shards.pairs(0, 40))
    (tmp_path / "x.tar").write_bytes(content[: len(content) // 2])
    (tmp_path / "x_stats.json").write_text('{"successes": 40}')
    with web_server(tmp_path, True) as (address, _):
        source = items(f"{address.replace('//', '//me:secret@')}/x.tar?X-Amz-Signature=secret")
        assert len(source) == 40 and sum(item.members is not None for item in source) > 10
        assert "secret" not in str([item._replace(members=None) for item in source])
