import gzip
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.loader.streaming import stream_batches
from tasks.loader.tars import local_files
from tests.loader import transforms
from tests.loader.conftest import MakeVersion, members_of, write_tar


def keys(urls: list[str], steps: int, **changes: Any) -> list[str]:
    options: dict[str, Any] = {"batch_size": 5, "seed": 0, "shuffle": "windows", "workers": 0, "prefetch": 2}
    with stream_batches(urls, transforms.plain, **{**options, **changes}) as batches:
        return [key for _ in range(steps) for key in next(batches)["key"]]


def pattern(version: Path) -> list[str]:
    shards = len(list((version / "train").glob("*.tar")))
    return [f"{version}/train/{{000000..{shards - 1:06d}}}.tar"]


def test_each_pass_holds_every_sample_once(make_version: MakeVersion) -> None:
    urls = pattern(make_version(train=[10, 10]))
    read = keys(urls, 8)
    assert len(set(read)) == 20
    assert {read.count(key) for key in set(read)} == {2}
    assert read[:20] != sorted(read[:20])


def test_seed_and_epoch_change_the_order(make_version: MakeVersion) -> None:
    urls = pattern(make_version(train=[30]))
    first = keys(urls, 12)
    assert first[:30] != first[30:]
    assert first[:30] != keys(urls, 6, seed=1)
    assert first == keys(urls, 12)


def test_without_shuffle_each_shard_is_read_in_order(make_version: MakeVersion) -> None:
    assert keys(pattern(make_version(train=[10])), 4, shuffle="none") == [f"k{n % 10:06d}" for n in range(20)]


def test_without_shuffle_every_sample_is_read_as_often_as_any_other(make_version: MakeVersion) -> None:
    """Three shards on two lanes, of which one has twice the samples of the other."""
    read = Counter(keys(pattern(make_version(train=[4, 4, 4])), 60, batch_size=4, shuffle="none"))
    assert len(read) == 12 and max(read.values()) - min(read.values()) <= 2


def test_two_ranks_read_different_shards(make_version: MakeVersion) -> None:
    urls = pattern(make_version(train=[5, 5, 5, 5]))
    ranks = [set(keys(urls, 4, batch_size=4, rank=rank, world_size=2, shuffle="none")) for rank in (0, 1)]
    assert ranks[0] & ranks[1] == set()


@pytest.mark.parametrize(
    "url",
    [
        "pipe:touch {marker}",
        "http://x/a.tar",
        "s3://b/a.tar",
        "gs://b/a.tar",
        "PIPE:touch {marker}",
        "-",
        "ais://b/a",
    ],
)
def test_what_would_run_a_command_is_refused(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(UsageError, match="only local files are read"):
        keys([url.format(marker=marker)], 1)
    assert not marker.exists()


def test_a_rewriting_environment_runs_nothing_either(
    make_version: MakeVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "marker"
    version = make_version(train=[5])
    monkeypatch.setenv("GOPEN_REWRITE", f"{version}=pipe:touch {marker}; cat {version}")
    assert keys(pattern(version), 1)
    assert not marker.exists()


def test_file_addresses_and_braces() -> None:
    assert local_files(["file:///data/{a,b}.tar", Path("x{y}.tar")]) == [
        Path("x{y}.tar"),
        Path("/data/a.tar"),
        Path("/data/b.tar"),
    ]


def test_a_permutation_needs_an_index(make_version: MakeVersion) -> None:
    with pytest.raises(UsageError, match=r"loader\.shuffle: samples needs an index"):
        keys(pattern(make_version(train=[5])), 1, shuffle="samples")


def test_fewer_shards_than_ranks_are_refused(make_version: MakeVersion) -> None:
    with pytest.raises(UsageError, match="1 shards cannot feed 2 ranks"):
        keys(pattern(make_version(train=[5])), 1, batch_size=4, world_size=2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["at a member", "inside a member"])
def test_a_truncated_tar_is_an_error(tmp_path: Path, where: str, workers: int) -> None:
    path = tmp_path / "a.tar"
    spans = write_tar(path, {f"k{n}": members_of(n) for n in range(10)})
    os.truncate(path, spans[6][0] + (512 if where == "inside a member" else 0))
    with pytest.raises(DataError, match=r"a\.tar: truncated, its end blocks are missing"):
        keys([str(path)], 4, workers=workers)


def test_a_truncated_compressed_tar_is_an_error(tmp_path: Path) -> None:
    whole = tmp_path / "a.tar"
    write_tar(whole, {f"k{n}": members_of(n) for n in range(40)})
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(whole.read_bytes()))
    assert len(set(keys([str(path)], 8))) == 40
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match=r"a\.tar\.gz: cannot be read after sample 'k\d+'"):
        keys([str(path)], 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_tar_without_samples_is_an_error_and_no_wait(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, {})
    with pytest.raises(DataError, match=r"a\.tar: holds no samples"):
        keys([str(path)], 1, workers=workers)


def test_html_saved_as_tar_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(b"<html>" + bytes(4096))
    with pytest.raises(DataError, match=r"a\.tar: cannot be read at its start"):
        keys([str(path)], 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"missing\.tar: cannot be read"):
        keys([str(tmp_path / "missing.tar")], 1)
