"""The map over groups: everything once, errors raised, killed workers replaced, nobody left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasks.core.engine import map_groups
from tasks.core.errors import DataError, TarmacError


def square(number: int) -> int:
    return number * number


def refuse(number: int) -> int:
    if number == 3:
        raise DataError("three is wrong")
    return number


def die_once(folder: Path) -> str:
    marker = folder / "died"
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return folder.name


def die_at_some(item: tuple[Path, int]) -> int:
    folder, number = item
    marker = folder / f"died_{number}"
    if number in (5, 20, 35, 50) and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def sleep_noting(folder: Path) -> None:
    (folder / str(os.getpid())).touch()
    time.sleep(60)


@pytest.mark.parametrize("workers", [1, 3])
def test_every_item_once(workers: int) -> None:
    assert sorted(map_groups(square, list(range(20)), workers)) == [n * n for n in range(20)]
    assert list(map_groups(square, [], workers)) == []


def test_an_error_is_raised_as_it_is() -> None:
    with pytest.raises(DataError, match="three is wrong"):
        list(map_groups(refuse, list(range(10)), 2))


def test_a_killed_worker_is_replaced_and_its_item_done_again(tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in range(4)]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "died").touch()
    assert sorted(map_groups(die_once, folders[:2], 2)) == ["0", "1"]


def test_unrelated_deaths_do_not_add_up(tmp_path: Path) -> None:
    assert sorted(map_groups(die_at_some, [(tmp_path, n) for n in range(60)], 2)) == list(range(60))


def test_work_that_kills_every_worker_ends_with_a_reason() -> None:
    with pytest.raises(TarmacError, match="was killed 3 times"):
        list(map_groups(die, [1], 1))


def test_workers_end_within_seconds_of_their_starters_death(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tasks.core.engine import map_groups\n"
        "from tests.core.test_engine import sleep_noting\n"
        "if __name__ == '__main__': list(map_groups(sleep_noting, [Path(sys.argv[1])] * 4, 2))\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    deadline = time.monotonic() + 30
    while len(os.listdir(tmp_path)) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = [psutil.Process(int(pid)) for pid in os.listdir(tmp_path)]
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    _, alive = psutil.wait_procs(workers, timeout=5)
    assert alive == []
