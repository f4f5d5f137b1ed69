"""The forkserver as a fork of a process that has just begun, by a program that loads a few batches."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tasks.diagnosis import memory
from tasks.diagnosis.observation.observe import observe
from tests.loader.conftest import MakeVersion
from tests.loader.test_workers import wait_until_gone

PROGRAM = """
import sys, time
from pathlib import Path
from tasks.loader import forkserver

open_file = open("/dev/zero")
print("written before", end="")
forkserver.{how}("tests.loader.transforms", "there.is.no.such.module")
from tests.loader import transforms
from tests.loader.feeds import train_batches
print()
batches = train_batches(Path(sys.argv[1]), transforms.slow, batch_size=4, seed=0, shuffle="none", workers=2, prefetch=2)
for _ in range(4):
    next(batches)
print(*batches.worker_pids, flush=True)
time.sleep(60)
"""


class Program:
    """One that waits with its workers alive; what it wrote before it named them is in `written`."""

    def __init__(self, how: str, version: Path) -> None:
        command = [sys.executable, "-c", PROGRAM.format(how=how), version]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.written = self.process.stdout.readline().strip()
        self.workers = [int(pid) for pid in self.process.stdout.readline().split()]
        self.family = [one.pid for one in psutil.Process(self.process.pid).children(recursive=True)]
        self.server = psutil.Process(self.workers[0]).ppid()
        self.both = (self.process.pid, self.server)

    def kill(self) -> str:
        """What it has written since."""
        self.process.kill()
        return self.process.communicate()[0]


@pytest.fixture
def version(make_version: MakeVersion) -> Path:
    return make_version(train=[40])


@pytest.mark.proof
def test_it_shares_its_imports_with_the_process_and_nothing_else(version: Path) -> None:
    fresh = Program("start_forkserver", version)
    forked = Program("fork", version)
    by_fork, by_start = (memory.tree_bytes(one.process.pid) for one in (forked, fresh))
    assert by_start - by_fork > 150e6  # torch alone takes more
    roles = {one.pid: one.role for one in observe(forked.process.pid, 0.2).processes}
    assert (roles[forked.server], {roles[pid] for pid in forked.workers}) == ("other", {"worker"})
    opened = [[os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()] for pid in forked.both]
    assert ["/dev/zero" in files for files in opened] == [True, False]
    assert forked.written == "written before"
    assert fresh.kill() == forked.kill() == ""


def test_it_ends_with_a_process_that_is_killed(version: Path) -> None:
    program = Program("fork", version)
    assert len(program.family) == 4  # two workers, it and multiprocessing's own tracker
    program.kill()
    wait_until_gone(program.family, 30)
