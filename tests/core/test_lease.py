"""One holder at a time; a dead one is replaced, a live one is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.files import read_json, write_json
from tasks.core.lease import Held, Lease, holder_of

HOLDER = (
    "import sys, time; from pathlib import Path; from tasks.core.lease import Lease\n"
    "Lease(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(60)\n"
)


@pytest.fixture
def other(tmp_path: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lease.json")], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process  # type: ignore[misc]
    process.kill()
    process.wait()


def test_a_live_holder_is_named_and_respected(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    with pytest.raises(Held, match=f"process {other.pid}"):
        Lease(tmp_path / "lease.json").acquire()


def test_a_killed_holder_is_replaced_at_once(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    with Lease(tmp_path / "lease.json"):
        holder = holder_of(tmp_path / "lease.json")
        assert holder is not None
        assert holder.identity.pid == os.getpid()
    assert not (tmp_path / "lease.json").exists()


def test_a_pid_that_came_again_is_not_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    with Lease(path):
        stolen = read_json(path)
    write_json(path, {**stolen, "ticks": stolen["ticks"] - 1000})
    with Lease(path):
        pass


def test_another_host_is_believed_while_its_heart_beats(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    with Lease(path):
        value = read_json(path)
    write_json(path, {**value, "host": "elsewhere"})
    with pytest.raises(Held, match="elsewhere"):
        Lease(path).acquire()
    write_json(path, {**value, "host": "elsewhere", "heartbeat": value["heartbeat"] - 1000})
    with Lease(path):
        pass


def test_of_many_that_take_over_one_wins(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    takers = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "lease.json")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(4)
    ]
    firsts = [taker.stdout.readline() for taker in takers if taker.stdout is not None]
    for taker in takers:
        taker.kill()
        taker.wait()
    assert firsts.count(b"held\n") == 1


def test_a_garbled_lease_is_no_holder(tmp_path: Path) -> None:
    (tmp_path / "lease.json").write_text("{")
    with Lease(tmp_path / "lease.json"):
        pass


def test_setting_the_clock_makes_nobody_dead(tmp_path: Path) -> None:
    """A stepped clock moves every start time that is told in Unix seconds."""
    path = tmp_path / "lease.json"
    with Lease(path):
        write_json(path, {**read_json(path), "started": 12345.0})
        with pytest.raises(Held):
            Lease(path).acquire()
        path.unlink()
