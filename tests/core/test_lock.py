"""One holder at a time; a dead one is replaced, a live one is named."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.core import lock
from tasks.core.errors import UsageError
from tasks.core.files import read_json, write_json
from tasks.core.lock import STALE_S, Held, Lease, holder_of
from tasks.dataset.building.builder import build
from tests.dataset import raw

HOLDER = (
    "import sys, time; from pathlib import Path; from tasks.core.lock import Lease\n"
    "Lease(Path(sys.argv[1])).acquire(); print('held', flush=True); time.sleep(60)\n"
)
UNSHARED = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def beat_at(path: Path, ahead_s: float) -> None:
    """Stamp the lease as the file system would have done at another time."""
    os.utime(path, (time.time() + ahead_s,) * 2)


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


@pytest.mark.parametrize("change", [{"host": "elsewhere"}, {"namespace": "pid:[1]"}, {"boot_id": "another"}])
def test_a_holder_that_cannot_be_seen_is_believed_while_its_heart_beats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    """Its pid is not looked up, and the looker's own clock may be wrong: the file system's decides."""
    path = tmp_path / "lease.json"
    with Lease(path):
        value = read_json(path)
    write_json(path, {**value, "ticks": 1, **change})
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: value["since"] + 1000)
        with pytest.raises(Held, match=value["host"] if "host" not in change else "elsewhere"):
            Lease(path).acquire()
    beat_at(path, -STALE_S - 60)
    with Lease(path):
        pass


def test_a_live_holder_in_a_pid_namespace_of_its_own_is_respected(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    if subprocess.run([*UNSHARED, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no namespaces here")
    holder = subprocess.Popen(
        [*UNSHARED, sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Held):
            Lease(path).acquire()
    finally:
        holder.kill()
        holder.wait()


def test_a_heartbeat_far_in_the_future_is_a_dead_ones(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    with Lease(path):
        value = read_json(path)
    write_json(path, {**value, "host": "elsewhere"})
    beat_at(path, 1e6)
    with Lease(path):
        pass


def make_unreadable(path: Path) -> None:
    """Put a link to itself in the lease's place, which nobody can open."""
    loop = path.with_name("loop")
    loop.symlink_to(path.name)
    os.replace(loop, path)


def test_the_heart_beats_on_after_a_read_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lease.json"
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.02)
    with Lease(path), caplog.at_level(logging.WARNING):
        value = read_json(path)

        def has_failed() -> bool:
            if not path.is_symlink():  # nor after a beat that had read before
                make_unreadable(path)
            return "no heartbeat" in caplog.text

        wait_for(has_failed)
        write_json(path, value)
        beat_at(path, -60)
        wait_for(lambda: (holder_of(path) or pytest.fail("lost")).heartbeat > time.time() - 30)


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_heart_stops_when_the_lease_is_anothers_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    path = tmp_path / "lease.json"
    monkeypatch.setattr(lock, "HEARTBEAT_S", 0.3)
    lease = Lease(path)
    lease.acquire()
    if is_gone:
        path.unlink()
    else:
        write_json(path, {**read_json(path), "pid": 1})
    beating = lease._thread
    assert beating is not None
    beating.join(20)
    assert not beating.is_alive()
    lease.release()
    assert path.exists() != is_gone


def test_a_lease_that_cannot_be_read_is_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "lease.json"
    with Lease(path):
        make_unreadable(path)
        with pytest.raises(OSError, match="symbolic links"):
            Lease(path).acquire()
        assert path.is_symlink()


def test_a_build_that_waits_tells_of_a_folder_that_it_cannot_write_any_more(tmp_path: Path) -> None:
    output = tmp_path / "out"
    raw.pictures(tmp_path / "raw", 2)

    def spoil(done: int, total: int, note: str) -> None:
        shutil.rmtree(output)
        output.symlink_to(tmp_path / "nowhere")

    with (
        Lease(output / "lease.json"),
        pytest.raises(UsageError, match=r"dataset\.output: .* cannot be written"),
    ):
        build(raw.config(tmp_path / "raw", output), spoil)


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


def test_no_two_hold_a_lease_that_a_slow_one_took_for_dead(
    tmp_path: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow one has seen that the holder is dead; before it acts, another takes over, and a third comes."""
    path = tmp_path / "lease.json"
    other.kill()
    other.wait()
    rename, link = os.rename, os.link
    held: list[Lease] = []
    slow, second, third = (threading.Thread(target=take, args=(path, held)) for _ in range(3))

    def slow_rename(source: Path, target: Path) -> None:
        if threading.current_thread() is slow:
            second.start()
            second.join(timeout=1.0)
        rename(source, target)

    def slow_link(source: Path, target: Path) -> None:
        if threading.current_thread() is slow and ".dead." in str(source):  # it puts back what is alive
            third.start()
            third.join(timeout=1.0)
        link(source, target)

    monkeypatch.setattr(os, "rename", slow_rename)
    monkeypatch.setattr(os, "link", slow_link)
    slow.start()
    for thread in (slow, second, third):
        wait_for(lambda thread=thread: thread is slow or thread.ident is not None or not slow.is_alive())
        if thread.ident is not None:
            thread.join()
    assert len(held) == 1
    held[0].release()
    assert not path.exists()


def take(path: Path, held: list[Lease]) -> None:
    lease = Lease(path)
    try:
        lease.acquire()
    except Held:
        return
    held.append(lease)


def test_whoever_loses_a_lease_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "CHECK_S", 0.05)
    path, lost = tmp_path / "lease.json", threading.Event()
    lease = Lease(path)
    lease.acquire()
    lease.watch(lost.set)
    time.sleep(0.3)
    lease.release()
    assert not lost.wait(0.3), "it was given back"
    lease.acquire()
    lease.watch(lost.set)
    write_json(path, {**read_json(path), "host": "elsewhere"})
    assert lost.wait(5.0)
    lease.release()
    assert read_json(path)["host"] == "elsewhere"


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
