"""Work in a child: its results, errors and progress come back, and it never outlives its starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tasks.core import child
from tasks.core.errors import DataError, TarmacError

FUNCTIONS = "tests.core.child_functions"


def test_result_progress_and_types_cross_over(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    arguments = {"left": 3, "right": "/a/b", "splits": {"val": 0.5}}
    result = child.call(f"{FUNCTIONS}:add", arguments, lambda *step: seen.append(step), tmp_path / "log")
    assert (result["sum"], result["name"], result["splits"]) == (3, "b", {"val": 0.5})
    assert result["session"] != os.getsid(0)
    assert seen == [(1, 2, "sums"), (2, 2, "sums")]
    assert "this is no message" in (tmp_path / "log").read_text()


def test_an_error_comes_back_as_what_it_is(tmp_path: Path) -> None:
    """One of a kind that only the child knows comes back as the nearest kind that both know."""
    with pytest.raises(DataError, match="the reason") as caught:
        child.call(f"{FUNCTIONS}:fail", {"kind": "data"}, log=tmp_path / "log")
    assert type(caught.value) is DataError


def test_a_crash_shows_its_last_lines_and_a_kill_its_signal(tmp_path: Path) -> None:
    with pytest.raises(TarmacError, match=r"(?s)exit code 1.*RuntimeError: a defect") as caught:
        child.call(f"{FUNCTIONS}:fail", {"kind": "crash"}, log=tmp_path / "log")
    assert str(tmp_path / "log") in str(caught.value)
    with pytest.raises(TarmacError, match="killed by SIGSEGV"):
        child.call(f"{FUNCTIONS}:fail", {"kind": "signal"}, log=tmp_path / "log")


def test_child_and_grandchild_end_when_the_starter_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from tasks.core import child\n"
        f"child.call('{FUNCTIONS}:sleep_with_child', {{'path': sys.argv[1]}})\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "pids")])
    deadline = time.monotonic() + 30
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    family = [psutil.Process(int(pid)) for pid in (tmp_path / "pids").read_text().split()]
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    assert alive == []
