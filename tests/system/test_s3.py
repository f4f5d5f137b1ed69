"""Sources and mirrors on a real S3 server."""

from __future__ import annotations

import itertools
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.folders import open_store
from tasks.core.patterns import expand
from tasks.core.remote import clients, ranges
from tasks.core.schema import Config
from tasks.core.stores import ABSENT, StoreUnreachable
from tasks.dataset.building.builder import build
from tasks.dataset.sources import Source, open_sources
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version import mirror, versions
from tasks.dataset.version.rejects import Reject
from tests import s3
from tests.dataset import raw
from tests.dataset.raw import image_folder
from tests.dataset.raw import table as tables
from tests.s3 import Wire

pytestmark = pytest.mark.system
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3.moto_server(tmp_path_factory.mktemp("s3") / "server.log") as port:
        yield port


@pytest.fixture
def wire(server: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    for module, name, seconds in (
        (ranges, "CONNECT_S", 1),
        (ranges, "STALL_S", 1),
        (clients, "REQUEST_S", 5),
        (clients, "STAT_S", 5),
        (clients, "PAUSE_S", 0.01),
    ):
        monkeypatch.setattr(module, name, seconds)
    with s3.reached_through(server, monkeypatch) as wire:
        yield wire


@pytest.fixture
def bucket(wire: Wire) -> str:
    return f"bucket{next(NUMBERS)}"


def read_all(config: Config) -> list[dict[str, Any]]:
    """As a build does it: listed by one source, read by another that has listed nothing."""
    source, worker = open_sources(config.dataset)[0], open_sources(config.dataset)[0]
    source.columns()
    members = []
    for item in items_of(source):
        assert item.fault is None
        assert source.is_sequential or item.stat != ABSENT
        members.append(dict(item.members or worker.read(item.file, item.content)))
    return members


def items_of(source: Source) -> Iterator[Any]:
    return (item for container in source.containers() for item in source.items(container))


def test_a_file_read_in_order_is_fetched_once(wire: Wire, bucket: str, tmp_path: Path) -> None:
    content = os.urandom(30_000_000)
    (tmp_path / "big.tar").write_bytes(content)
    s3.put(tmp_path, bucket)
    before = wire.received
    with open_store(f"s3://{bucket}").open("big.tar") as file:
        assert b"".join(iter(lambda: file.read(100_000), b"")) == content
    assert wire.received - before <= 1.01 * len(content)


def test_ranges_are_asked_for_plainly_and_by_the_client_where_that_is_refused(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(3_000_000)
    (tmp_path / "a b+c%2F#?.tar").write_bytes(content)
    s3.put(tmp_path, bucket)
    asked: list[str] = []
    plainly = ranges.get_range

    def recorded(address: str, start: int, end: int) -> ranges.Range:
        asked.append(address)
        return plainly(address, start, end)

    def refused(address: str, start: int, end: int) -> ranges.Range:
        raise ranges.Refused

    monkeypatch.setattr(ranges, "BLOCK", 1 << 20)
    monkeypatch.setattr(ranges, "get_range", recorded)
    store = open_store(f"s3://{bucket}")
    with store.open("a b+c%2F#?.tar") as file:
        assert file.read() == content
    assert len(asked) == 3 and all("X-Amz-Algorithm=AWS4-HMAC-SHA256" in address for address in asked)
    store.announce(["a b+c%2F#?.tar"], len(content))
    assert store.read("a b+c%2F#?.tar", len(content)) == content
    monkeypatch.setattr(ranges, "get_range", refused)
    with store.open("a b+c%2F#?.tar", size=len(content)) as file:
        assert file.read() == content


def test_patterns_and_gaps(bucket: str, tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"x/{number:06d}.tar").parent.mkdir(exist_ok=True)
        (tmp_path / f"x/{number:06d}.tar").write_bytes(b"")
    s3.put(tmp_path, bucket)
    folder = f"s3://{bucket}/x"
    for pattern in ("{000000..000011}.tar", "0000*.tar", ""):
        assert expand(f"{folder}/{pattern}".rstrip("/"), (".tar",)) == [
            f"{folder}/{n:06d}.tar" for n in range(12)
        ]
    with pytest.raises(UsageError, match=r"^dataset\.source\.path: there is no .*/000012\.tar"):
        expand(f"{folder}/{{000000..000013}}.tar", (".tar",))


def test_a_table_with_images_beside_it(bucket: str, tmp_path: Path) -> None:
    raw.pictures(tmp_path, 300, side=4)
    s3.put(tmp_path, bucket)
    source = {"image": "file", "caption": "caption"}
    members = read_all(tables.config(f"s3://{bucket}/captions.csv", tmp_path / "out", **source))
    assert [one["image"] for one in members] == [raw.png(n, 4) for n in range(300)]


def test_a_local_table_with_addresses(bucket: str, tmp_path: Path) -> None:
    raw.pictures(tmp_path / "there", 2)
    s3.put(tmp_path / "there", bucket)
    raw.write_table(tmp_path, [(f"s3://{bucket}/{n:04d}.png", f"picture {n}", "") for n in range(2)])
    config = raw.config(tmp_path, tmp_path / "out")
    assert [one["image"] for one in read_all(config)] == [raw.png(n) for n in range(2)]


def test_parquet_with_bytes_is_read_once(wire: Wire, bucket: str, tmp_path: Path) -> None:
    rows = [
        {"image": {"bytes": os.urandom(100_000), "path": f"{n}.png"}, "text": f"picture {n}", "label": n}
        for n in range(300)
    ]
    tables.write_parquet(tmp_path / "raw/t.parquet", rows, row_group_size=100, write_batch_size=8)
    s3.put(tmp_path / "raw", bucket)
    size = (tmp_path / "raw/t.parquet").stat().st_size
    before = wire.received
    members = read_all(tables.config(f"s3://{bucket}/t.parquet", tmp_path / "out"))
    assert wire.received - before <= 1.1 * size
    assert [one["image"] for one in members] == [row["image"]["bytes"] for row in rows]


@pytest.mark.parametrize("make", [image_folder.make, image_folder.make_of_json, image_folder.make_of_classes])
def test_a_folder_of_images(make: Callable[[Path], Config], bucket: str, tmp_path: Path) -> None:
    local = read_all(make(tmp_path / "raw"))
    s3.put(tmp_path / "raw", bucket)
    source = make(tmp_path / "raw").dataset.all_sources[0].model_dump(exclude={"path"}, exclude_none=True)
    assert read_all(image_folder.config(f"s3://{bucket}", tmp_path / "out", **source)) == local


BUILD = """
import sys
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
print(build(Config.model_validate_json(sys.argv[1])).digest)
"""


def built_elsewhere(config: Config) -> str:
    """The digest of a build by a process of its own, whose workers have this process's environment."""
    command = [sys.executable, "-c", BUILD, config.model_dump_json()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("make", [tables.make, tables.make_of_bytes, image_folder.make])
def test_a_build_from_a_bucket_equals_one_from_a_folder(
    make: Callable[[Path], Config], bucket: str, tmp_path: Path
) -> None:
    there = make(tmp_path / "raw").model_dump(mode="json")
    there["dataset"]["output"] = str(tmp_path / "one")
    local = Config.model_validate(there)
    s3.put(tmp_path / "raw", bucket)
    path = there["dataset"]["source"]["path"].replace(str(tmp_path / "raw"), f"s3://{bucket}")
    there["dataset"]["source"]["path"] = path
    there["dataset"]["output"] = str(tmp_path / "other")
    assert built_elsewhere(Config.model_validate(there)) == build(local).digest


def test_a_connection_that_is_cut_ends_the_build(wire: Wire, bucket: str, tmp_path: Path) -> None:
    image_folder.make(tmp_path / "raw")
    s3.put(tmp_path / "raw", bucket)
    source = open_sources(image_folder.config(f"s3://{bucket}", tmp_path / "out").dataset)[0]
    item, *_ = items_of(source)
    wire.cut()
    with pytest.raises(DataError, match="cannot be reached") as caught:
        source.read(item.file, item.content)
    assert s3.SECRET not in str(caught.value) and "AKIA" not in str(caught.value)


def test_a_cut_in_the_middle_of_a_table_is_no_shorter_table(wire: Wire, bucket: str, tmp_path: Path) -> None:
    rows = [
        {"image": {"bytes": os.urandom(200_000), "path": None}, "text": "x", "label": n} for n in range(100)
    ]
    tables.write_parquet(tmp_path / "t.parquet", rows, write_batch_size=8)
    s3.put(tmp_path, bucket)
    rest = items_of(open_sources(tables.config(f"s3://{bucket}/t.parquet", tmp_path / "out").dataset)[0])
    next(rest)
    wire.cut()
    with pytest.raises(DataError, match="cannot be reached"):
        list(rest)


def test_a_server_that_stalls_is_an_error_soon(wire: Wire, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    s3.put(tmp_path, bucket)
    store = open_store(f"s3://{bucket}")
    assert store.open("x").read() == b"x"
    wire.is_stalled = True
    started = time.monotonic()
    with pytest.raises(StoreUnreachable, match="does not answer in time"):
        store.open("x")
    assert time.monotonic() - started < 60


def test_what_is_not_there_or_not_allowed(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_folder.make(tmp_path / "raw")
    s3.put(tmp_path / "raw", bucket)
    source = open_sources(image_folder.config(f"s3://{bucket}", tmp_path / "out").dataset)[0]
    with pytest.raises(Reject, match=r"member\.missing: no such file"):
        source.read("train/no.png", json.dumps({"file": "train/0.txt"}))
    with pytest.raises(UsageError, match=r"^dataset\.source\.path: there is no folder"):
        open_sources(image_folder.config(f"s3://{bucket}/no", tmp_path / "out").dataset)[0].columns()
    with pytest.raises(DataError, match="there is no such bucket"):
        open_sources(image_folder.config("s3://nobody-made-this", tmp_path / "out").dataset)[0].columns()


def test_no_secret_reaches_a_log(bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x").write_bytes(b"x")
    s3.put(tmp_path, bucket)
    with caplog.at_level(logging.INFO):
        open_store(f"s3://{bucket}").open("x").read()
        with pytest.raises(OSError, match="no such file") as caught:
            open_store(f"s3://{bucket}").open("y")
    assert s3.SECRET not in caplog.text + repr(caught.value) + str(caught.value)


def built(folder: Path, count: int, output: Path) -> Path:
    """A published version of `count` samples; its folder."""
    raw.pictures(folder, count)
    config = raw.config(folder, output)
    version = build(config).version
    versions.publish(output, version, keep=9)
    return version


def as_files(version: Path) -> dict[str, bytes]:
    return {
        f"versions/{version.name}/{path.relative_to(version).as_posix()}": path.read_bytes()
        for path in version.rglob("*")
        if path.is_file()
    }


def test_a_mirror_holds_the_version_and_names_it(wire: Wire, bucket: str, tmp_path: Path) -> None:
    s3.put(tmp_path / "nothing", bucket)
    first = built(tmp_path / "raw", 60, tmp_path / "data")
    found: list[int] = []
    done = mirror.publish(first, f"s3://{bucket}/x", 2, lambda so_far, whole, note: found.append(so_far))
    there = {key.removeprefix("x/"): content for key, content in s3.objects(bucket).items()}
    assert there == {"current": first.name.encode(), **as_files(first)}
    assert done.uploaded == len(there) - 1 and found == sorted(found)
    again = mirror.publish(first, f"s3://{bucket}/x", 2)
    tars = sum(name.endswith(".tar") for name in there)
    assert (again.uploaded, again.copied, again.kept) == (len(there) - 1 - tars, 0, tars)

    time.sleep(1.1)  # a store tells by the second when an object was made
    second = built(tmp_path / "raw", 61, tmp_path / "data")
    before = wire.received
    done = mirror.publish(second, f"s3://{bucket}/x", 2)
    assert done.copied > 0 and done.uploaded < len(as_files(second))
    assert wire.received - before < 100_000
    there = {key.removeprefix("x/"): content for key, content in s3.objects(bucket).items()}
    assert there == {"current": second.name.encode(), **as_files(first), **as_files(second)}

    third = built(tmp_path / "raw", 62, tmp_path / "data")
    assert mirror.publish(third, f"s3://{bucket}/x", 2).pruned == [first.name]
    names = {key.split("/")[2] for key in s3.objects(bucket) if key.startswith("x/versions/")}
    assert names == {second.name, third.name}


def test_an_upload_that_was_cut_goes_on_and_was_never_current(
    server: int, wire: Wire, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put(tmp_path / "nothing", bucket)
    version = built(tmp_path / "raw", 200, tmp_path / "data")

    def cut(done: int, whole: int, note: str) -> None:
        if done > whole / 2:
            wire.cut()

    with pytest.raises(DataError):
        mirror.publish(version, f"s3://{bucket}", 2, cut)
    with s3.reached_through(server, monkeypatch):
        half = s3.objects(bucket)
        assert 0 < len(half) < len(as_files(version))
        assert "current" not in half and f"versions/{version.name}/manifest.json" not in half
        done = mirror.publish(version, f"s3://{bucket}", 2)
        assert done.kept > 0
        assert s3.objects(bucket) == {"current": version.name.encode(), **as_files(version)}


def test_a_mirror_that_lost_an_object_meanwhile_is_not_switched(
    wire: Wire, bucket: str, tmp_path: Path
) -> None:
    s3.put(tmp_path / "nothing", bucket)
    version = built(tmp_path / "raw", 60, tmp_path / "data")

    def lose(done: int, whole: int, note: str) -> None:
        if done == whole:
            s3.delete(bucket, f"versions/{version.name}/train/000000.tar")

    with pytest.raises(DataError, match=r"train/000000\.tar is not as it was sent"):
        mirror.publish(version, f"s3://{bucket}", 2, lose)
    assert "current" not in s3.objects(bucket)
    done = mirror.publish(version, f"s3://{bucket}", 2)
    assert done.kept == sum(name.endswith(".tar") for name in as_files(version)) - 1


def test_a_mirror_that_refuses_names_the_key(wire: Wire, tmp_path: Path) -> None:
    version = built(tmp_path / "raw", 6, tmp_path / "data")
    with pytest.raises(DataError, match="there is no such bucket"):
        mirror.publish(version, "s3://nobody-made-this/x", 2)


def codes(place: str, level: Any = "default") -> list[tuple[str, str]]:
    found = verify(place, level).findings
    return [(one.code, str(one.where.get("shard") or one.where.get("file"))) for one in found]


def mirrored(bucket: str, folder: Path) -> tuple[Path, str]:
    """A version, and the prefix of its copy in the bucket."""
    s3.put(folder / "nothing", bucket)
    version = built(folder / "raw", 60, folder / "data")
    mirror.publish(version, f"s3://{bucket}/x", 2)
    return version, f"x/versions/{version.name}"


@pytest.mark.parametrize("level", ["quick", "default", "full"])
def test_a_mirror_is_verified_where_it_lies(wire: Wire, bucket: str, tmp_path: Path, level: Any) -> None:
    version, prefix = mirrored(bucket, tmp_path)
    for place in (f"s3://{bucket}/x", f"s3://{bucket}/x/", f"s3://{bucket}/{prefix}"):
        report = verify(place, level)
        assert report.ok and report.findings == []
    before = wire.received
    verify(f"s3://{bucket}/x", level)
    stored = sum(path.stat().st_size for path in version.rglob("*") if path.is_file())
    assert wire.received - before < 1.2 * stored + 100_000, "nothing is fetched twice"

    tar = (version / "train/000001.tar").read_bytes()
    s3.delete(bucket, f"{prefix}/train/000000.tar")
    s3.replace(bucket, f"{prefix}/train/000001.tar", tar[:700] + b"x" + tar[701:])
    s3.replace(bucket, f"{prefix}/train/000002.tar", (version / "train/000002.tar").read_bytes()[:-1024])
    s3.replace(bucket, f"{prefix}/val/000009.tar", tar)
    index = bytearray((version / "index/val.npy").read_bytes())
    index[-1] ^= 1
    s3.replace(bucket, f"{prefix}/index/val.npy", bytes(index))
    found = set(codes(f"s3://{bucket}/x", level))
    expected = {
        ("index.mismatch", "index/val.npy"),
        ("shard.missing", "train/000000.tar"),
        ("shard.truncated", "train/000002.tar"),
        ("shard.extra", "val/000009.tar"),
    }
    if level != "quick":
        expected |= {("shard.checksum", "train/000001.tar"), ("member.checksum", "train/000001.tar")}
    assert found == expected
    s3.delete(bucket, f"{prefix}/manifest.json")
    assert ("manifest.invalid", "manifest.json") in codes(f"s3://{bucket}/x", level)


def test_tars_in_a_bucket_are_verified_by_folder_and_by_pattern(bucket: str, tmp_path: Path) -> None:
    version = built(tmp_path / "raw", 60, tmp_path / "data")
    tars = sorted((version / "train").glob("*.tar"))
    for number, path in enumerate(tars):
        (tmp_path / "tars/train").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"tars/train/{number:06d}.tar").write_bytes(path.read_bytes())
    s3.put(tmp_path / "tars", bucket)
    last = len(tars) - 1
    for place in ("", "/train", "/train/*.tar", f"/train/{{000000..{last:06d}}}.tar", "/train/000000.tar"):
        for level in ("quick", "full"):
            assert codes(f"s3://{bucket}{place}", level) == []
    absent = f"/train/{{000000..{last + 20:06d}}}.tar"
    assert len(codes(f"s3://{bucket}{absent}", "quick")) == 20
    s3.delete(bucket, "train/000001.tar")
    assert codes(f"s3://{bucket}", "quick") == [("shard.missing", "train/000001.tar")]
    for nothing in ("/no", "/no/{0..3}.tar", "/train/no.tar"):
        with pytest.raises(UsageError, match=r"^DATASET: "):
            verify(f"s3://{bucket}{nothing}")


def test_a_store_that_is_gone_is_no_finding_of_its_shards(
    wire: Wire, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    mirrored(bucket, tmp_path)

    def cut(done: int, whole: int, note: str) -> None:
        wire.cut()

    with pytest.raises(DataError, match="cannot be reached"):
        verify(f"s3://{bucket}/x", "default", cut)
    left = [path for path in (tmp_path / "temporary").iterdir() if not path.name.startswith("pymp-")]
    assert left == [], "what was fetched is gone; the folder of multiprocessing stays as long as the process"
