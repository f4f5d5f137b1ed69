"""Faults in the loader's processes, injected for real: nothing hangs, nothing is left behind."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.core.errors import DataError, TarmacError
from tasks.loader.bad import BadSampleError, Defect
from tasks.loader.workers import Batches, Transform
from tests.loader import transforms
from tests.loader.conftest import MakeVersion
from tests.loader.feeds import One, feed_of, split_batches, train_batches


def start(version: Path, transform: Transform, workers: int = 2, **changes: Any) -> Batches:
    options: dict[str, Any] = {"batch_size": 4, "seed": 0, "shuffle": "none", "prefetch": 2}
    return train_batches(version, transform, workers=workers, **{**options, **changes})


def alive(pids: tuple[int, ...] | list[int]) -> list[int]:
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


def wait_until_gone(pids: tuple[int, ...] | list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pids)


@pytest.mark.parametrize("reader", ["indexed", "streaming"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_error_arrives_as_it_was_raised(make_version: MakeVersion, workers: int, reader: str) -> None:
    batches = start(make_version(train=[10, 10]), transforms.refusing, workers, reader=reader)
    with pytest.raises(DataError) as caught:
        for _ in range(10):
            next(batches)
    shard = "train/000001.tar" if reader == "streaming" else "train/000001.tar row 3"
    assert f"{shard}, key 'k000013': the picture is all black; " in str(caught.value)
    assert isinstance(caught.value, BadSampleError)
    row = None if reader == "streaming" else 3
    expected = Defect("train", "train/000001.tar", row, "k000013", None, "member.undecodable")
    assert caught.value.defect == expected
    wait_until_gone(batches.worker_pids, 60)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_shard_stops_training_by_name(make_version: MakeVersion, workers: int) -> None:
    version = make_version(train=[10, 10])
    os.truncate(version / "train" / "000001.tar", 6000)
    with pytest.raises(DataError, match=r"^train/000001\.tar row \d+, key .*truncated"):
        for batch in start(version, transforms.plain, workers):
            assert batch


@pytest.mark.parametrize("on_bad", ["raise", "replace"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_bug_in_a_transform_keeps_its_type_and_says_where(
    make_version: MakeVersion, workers: int, on_bad: str
) -> None:
    with pytest.raises(KeyError, match="labels") as caught:
        next(start(make_version(train=[10]), transforms.buggy, workers, on_bad=on_bad))
    found = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "in the transform of train/000000.tar row 0, key 'k000000'" in found


def test_a_worker_that_kills_itself_is_named(make_version: MakeVersion) -> None:
    started = time.monotonic()
    with pytest.raises(TarmacError, match=r"loader worker \(pid \d+\) of .* was killed by SIGKILL; .*memory"):
        for _ in start(make_version(train=[40]), transforms.suicidal):
            pass
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    "transform", [pytest.param(transforms.plain, marks=pytest.mark.proof), transforms.with_long_texts]
)
def test_a_worker_killed_from_outside_is_named(make_version: MakeVersion, transform: Transform) -> None:
    """Also while it hands over more text than its pipe holds, which must not leave a torn message."""
    with start(make_version(train=[40]), transform, batch_size=16, prefetch=4) as batches:
        next(batches)
        time.sleep(1)  # the workers run ahead and fill their queues
        os.kill(batches.worker_pids[0], signal.SIGKILL)
        started = time.monotonic()
        with pytest.raises(TarmacError, match="was killed by SIGKILL"):
            for _ in range(100):
                next(batches)
        assert time.monotonic() - started < 60


def test_a_worker_takes_the_memory_again_that_it_freed(make_version: MakeVersion) -> None:
    with start(make_version(train=[40]), transforms.taking_and_freeing, workers=1) as batches:
        next(batches)
        assert int(next(batches)["pages"].max()) < 4096, "48 MiB are 12,288 pages"


SMALL_MEMORY = """
import sys
from pathlib import Path
from tests.loader.feeds import train_batches
from tests.loader import transforms

if __name__ == "__main__":
    batches = train_batches(Path(sys.argv[1]), transforms.large, batch_size=8, seed=0, shuffle="none", workers=2,
                            prefetch=2, reader=sys.argv[2])
    for _ in range(10):
        assert next(batches)["voxels"].sum() == 8 << 17
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="mounting a small disk takes root"
)
@pytest.mark.parametrize("reader", ["indexed", pytest.param("streaming", marks=pytest.mark.proof)])
def test_batches_need_no_room_in_dev_shm(make_version: MakeVersion, tmp_path: Path, reader: str) -> None:
    """Of which a container has 64 MB unless asked."""
    script = tmp_path / "main.py"
    script.write_text(SMALL_MEMORY)
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    command = [sys.executable, str(script), str(make_version(train=[40])), reader]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(["unshare", "--mount", "sh", "-c", mount, "sh", *command], check=True, env=env)


def test_a_worker_without_descriptors_is_an_error(make_version: MakeVersion) -> None:
    feed = feed_of(make_version(train=[40]), transforms.plain, batch_size=4, workers=1)
    feed = dataclasses.replace(feed, shapes=One(transforms.plain, transforms.without_descriptors))
    with pytest.raises(OSError, match="Too many open files"):
        next(feed.train())


def test_a_batch_that_cannot_be_sent_is_an_error(make_version: MakeVersion) -> None:
    with pytest.raises(TarmacError, match="ended with exit code 1; its log says why"):
        next(start(make_version(train=[40]), transforms.with_an_error_of_its_own))


def test_closing_ends_the_workers(make_version: MakeVersion) -> None:
    batches = start(make_version(train=[40]), transforms.slow)
    next(batches)
    pids = batches.worker_pids
    assert len(alive(pids)) == 2
    batches.close()
    wait_until_gone(pids, 60)
    assert list(batches) == []


def test_a_split_ends_its_workers_with_its_last_batch(make_version: MakeVersion) -> None:
    batches = split_batches(make_version(val=[10]), "val", transforms.plain, batch_size=3, workers=2)
    assert len(list(batches)) == 4
    wait_until_gone(batches.worker_pids, 60)


def test_no_more_workers_than_batches(make_version: MakeVersion) -> None:
    with split_batches(make_version(val=[3]), "val", transforms.plain, batch_size=2, workers=8) as batches:
        assert len(batches.worker_pids) == 2


MAIN = """
import sys, time
from pathlib import Path
from tests.loader.feeds import train_batches
from tests.loader import transforms

if __name__ == "__main__":
    batches = train_batches(Path(sys.argv[1]), transforms.slow, batch_size=4, seed=0, shuffle="none", workers=2,
                            prefetch=2)
    next(batches)
    print(*batches.worker_pids, flush=True)
    time.sleep(60)
"""


def test_workers_end_when_the_training_process_is_killed(make_version: MakeVersion, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(MAIN)
    root = str(Path(__file__).parents[2])
    main = subprocess.Popen(
        [sys.executable, str(script), str(make_version(train=[40]))],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert main.stdout is not None
    with main, main.stdout:
        workers = [int(pid) for pid in main.stdout.readline().split()]
        family = [process.pid for process in psutil.Process(main.pid).children(recursive=True)]
        assert len(workers) == 2
        assert set(workers) < set(family)  # the forkserver among them
        os.kill(main.pid, signal.SIGKILL)
        wait_until_gone(family, 60)
