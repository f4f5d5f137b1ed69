import gzip
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import Loader
from tasks.loader import streaming
from tasks.loader.feed import Feed
from tasks.loader.lanes import Lane
from tasks.loader.tars import read_tar, shards_at
from tests.loader import transforms
from tests.loader.conftest import MakeVersion, members_of, write_tar
from tests.loader.feeds import One


def feed_of_tars(shuffle: str = "windows", batch_size: int = 5, **options: Any) -> Feed:
    loader = Loader.model_validate({"reader": "streaming", "shuffle": shuffle})
    return Feed((), One(transforms.plain), batch_size, loader, **options)


def keys(
    urls: list[str], steps: int, start_step: int = 0, sizes: list[int] | None = None, **options: Any
) -> list[str]:
    feed = feed_of_tars(**options)
    with feed.stream(urls, feed.state(start_step), sizes) as batches:
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
        "PIPE:touch {marker}",
        "-",
        "ais://b/a",
    ],
)
def test_what_would_run_a_command_is_refused(url: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(UsageError, match="commands are never run"):
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
    assert shards_at(["file:///data/{a,b}.tar", Path("x{y}.tar")]) == [
        Path("/data/a.tar"),
        Path("/data/b.tar"),
        Path("x{y}.tar"),
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


def read_for(urls: list[str], monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[str]:
    """The shards of the samples that were read for one batch, from whatever step."""
    read: list[str] = []

    def counted(path: Path) -> Any:
        for raw in read_tar(path):
            read.append(path.name)
            yield raw

    monkeypatch.setattr(streaming, "read_tar", counted)
    keys(urls, 1, **changes)
    return read


def test_the_first_batch_waits_for_a_small_block_only(
    make_version: MakeVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = pattern(make_version(train=[300]))
    assert len(read_for(urls, monkeypatch, sizes=[300])) == 64


def test_a_resume_reads_nothing_but_the_shard_that_it_falls_into(
    make_version: MakeVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = pattern(make_version(train=[20] * 8))
    read = read_for(urls, monkeypatch, sizes=[20] * 8, start_step=8 * 1000 + 5)
    assert len(read) <= 40 and len(set(read)) <= 2


READING = """
import sys
from tests.loader.test_streaming import feed_of_tars

if __name__ == "__main__":
    with feed_of_tars(workers=1).stream(sys.argv[1:]) as batches:
        for batch in batches:
            print(*batch["key"], flush=True)
"""


@pytest.mark.proof
def test_tars_without_an_index_go_on_after_a_kill_at_the_very_sample(
    make_version: MakeVersion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls = pattern(make_version(train=[20, 10, 30]))
    (tmp_path / "main.py").write_text(READING)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    main = subprocess.Popen(
        [sys.executable, str(tmp_path / "main.py"), *urls], stdout=subprocess.PIPE, text=True, env=env
    )
    with main:
        assert main.stdout is not None
        before = [main.stdout.readline().split() for _ in range(7)]
        main.kill()
    after = keys(urls, 5, start_step=7, workers=0)
    assert Counter([key for batch in before for key in batch] + after).most_common()[0][1] == 1
    assert len(after) == 25
    [record] = [one for one in caplog.records if "without an index" in one.message]
    assert record.levelname == "WARNING" and "a resume reads them again; `tarmac index`" in record.message


def test_lanes_come_to_the_end_of_an_epoch_together_whatever_their_shards() -> None:
    sizes = [1, 50, 3, 7, 0, 39]
    lanes = [Lane(number, 4, sizes, seed=2, largest=10) for number in range(4)]
    for epoch in range(6):
        pieces = [lane._piece(epoch, 100) for lane in lanes]
        assert sorted(number for piece in pieces for number in piece) == list(range(100))
    given = [
        [(segment.shard, row) for segment in block.segments for row in segment.rows]
        for lane in lanes
        for block, _ in islice(lane.blocks(0), 3)
    ]
    rows = [row for block in given for row in block]
    assert len(rows) == len(set(rows)) == 100
    assert set(rows) == {(shard, row) for shard, size in enumerate(sizes) for row in range(size)}


@pytest.mark.parametrize(
    "lane", [Lane(1, 3, [7, 20, 4, 9], seed=2, largest=8), Lane(1, 2, [700, 190, 410], seed=2, largest=200)]
)
def test_a_lane_begins_anywhere_in_its_sequence(lane: Lane) -> None:
    """Also where blocks still grow, and long after."""

    def samples(start: int, count: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for block, skipped in lane.blocks(start):
            rows = [(segment.shard, row) for segment in block.segments for row in segment.rows]
            found += [rows[place] for place in block.order[skipped:]]
            if len(found) >= count:
                return found[:count]
        raise AssertionError("it has no end")

    whole = samples(0, 1500)
    assert all(samples(start, 5) == whole[start : start + 5] for start in range(0, 1490, 7))
