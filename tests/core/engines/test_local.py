"""The map on this machine: everything once, errors raised, killed workers replaced, nobody left behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tasks.core.engines import map_groups, map_here
from tasks.core.errors import DataError, TarmacError
from tasks.core.schema.engine import Engines
from tests.core.engines.functions import Job, die, die_once, environment, note, refuse, work
from tests.services import until

STARTER = """\
import sys
from pathlib import Path
from tasks.core.engines import map_here
from tests.core.engines.functions import Job, work
if __name__ == "__main__":
    list(map_here(work, [Job(n, Path(sys.argv[1]), 60.0) for n in range(4)], 2))
"""


PLAIN_SCRIPT = """\
import sys
from pathlib import Path
from tasks.core.engines import map_here
from tests.core.engines.functions import Job, work
print("begun")
print(len(list(map_here(work, [Job(n, Path(sys.argv[1])) for n in range(4)], 2))))
"""


@pytest.mark.parametrize("workers", [1, 3])
def test_every_item_once(workers: int, tmp_path: Path) -> None:
    engines = Engines.model_validate({"build": {"workers": workers}})
    function = functools.partial(note, folder=tmp_path)
    found = map_groups(function, range(20), engines, folder=tmp_path)
    assert sorted(found) == [n * n for n in range(20)]
    assert {path.read_text() for path in tmp_path.glob("*.txt")} == {"."}
    assert list(map_groups(function, [], engines, folder=tmp_path)) == []


def test_a_script_runs_once_and_not_in_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.split(), done.stderr) == (["begun", "4"], "")


def test_items_are_taken_a_few_ahead_and_never_held() -> None:
    taken = 0

    def names() -> Iterator[str]:
        nonlocal taken
        for number in range(100_000):
            taken = number + 1
            yield f"TARMAC_{number}"

    running = map_here(environment, names(), 2)
    for done in range(1, 40):
        next(running)
        assert taken <= done + 2 * 2
    running.close()
    assert taken < 50


def test_an_error_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 is wrong"):
        list(map_here(refuse, [Job(3, tmp_path)], 2))


def test_an_error_among_the_items_ends_the_map(tmp_path: Path) -> None:
    def items() -> Iterator[Job]:
        yield Job(0, tmp_path)
        raise DataError("the list is torn")

    with pytest.raises(DataError, match="the list is torn"):
        list(map_here(work, items(), 2))


def test_killed_workers_are_replaced_and_their_items_done_again(tmp_path: Path) -> None:
    for number in range(20):
        if number not in (5, 15):
            (tmp_path / f"{number}.first").touch()
    assert sorted(map_here(die_once, [Job(n, tmp_path) for n in range(20)], 2)) == list(range(20))


def test_work_that_kills_every_worker_ends_with_a_reason() -> None:
    with pytest.raises(TarmacError, match="was killed 3 times"):
        list(map_here(die, [1], 1))


def test_workers_end_within_seconds_of_their_starters_death(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(tmp_path)])
    until("the workers' work", lambda: len(os.listdir(tmp_path)) >= 2, 30, 0.05)
    workers = psutil.Process(starter.pid).children(recursive=True)
    assert len(workers) >= 2
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
