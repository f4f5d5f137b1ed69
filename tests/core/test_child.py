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
from tasks.core.errors import DataError, NeedsApproval, TarmacError

FUNCTIONS = "tests.core.child_functions"


def test_result_progress_and_types_cross_over(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int, str]] = []
    arguments = {"left": 3, "right": "/a/b", "splits": {"val": 0.5}}
    result = child.call(f"{FUNCTIONS}:add", arguments, lambda *step: seen.append(step))
    assert (result["sum"], result["name"], result["splits"]) == (3, "b", {"val": 0.5})
    assert result["session"] != os.getsid(0)
    assert seen == [(1, 2, "sums"), (2, 2, "sums")]
    assert "this is no message" in capfd.readouterr().err


def test_an_error_comes_back_as_what_it_is() -> None:
    """One of a kind that only the child knows comes back as the nearest kind that both know."""
    with pytest.raises(DataError, match="the reason") as caught:
        child.call(f"{FUNCTIONS}:fail", {"kind": "data"})
    assert type(caught.value) is DataError


def test_an_error_keeps_the_field_that_mends_it() -> None:
    with pytest.raises(NeedsApproval, match="12 samples are gone") as caught:
        child.call(f"{FUNCTIONS}:lose", {})
    assert caught.value.field == "accept_loss" and caught.value.samples == [{"sample": "owl/1.png"}]


def test_a_crash_shows_its_last_lines_and_a_kill_its_signal(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TarmacError, match=r"(?s)exit code 1.*RuntimeError: a defect") as caught:
        child.call(f"{FUNCTIONS}:fail", {"kind": "crash"})
    quoted = str(caught.value).splitlines()[1:]
    assert len(quoted) == child.LAST_LINES
    assert "a defect" not in capfd.readouterr().err, "the error's lines stand twice on the terminal"
    with pytest.raises(TarmacError, match="killed by SIGSEGV"):
        child.call(f"{FUNCTIONS}:fail", {"kind": "signal"})


def test_a_child_that_ends_before_it_is_told_anything_shows_its_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the arguments are more than a pipe holds, so that they cannot be sent."""
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(2, b'no start\\n'); os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TarmacError, match=r"(?s)add ended with exit code 3.*no start"):
        child.call(f"{FUNCTIONS}:add", {"left": "x" * (1 << 20)})


def test_a_crash_over_private_data_is_seen_on_the_terminal_only(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TarmacError, match="exit code 1") as caught:
        child.call(f"{FUNCTIONS}:fail", {"kind": "crash"}, is_private=True)
    assert "a defect" not in str(caught.value)
    assert "RuntimeError: a defect" in capfd.readouterr().err


def test_what_a_child_logs_is_logged_here(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level("INFO", "tasks"):
        child.call(f"{FUNCTIONS}:warn", {})
    said = [(record.levelname, record.message) for record in caplog.records]
    assert said[:3] == [
        ("WARNING", "shown by the child"),
        ("WARNING", "logged by 2 libraries"),
        ("INFO", "in passing"),
    ]
    assert said[3] == ("INFO", f"{FUNCTIONS}:warn printed:\nby a print")
    printed = capfd.readouterr().err.splitlines()
    assert (printed[0], printed[-1]) == ("! shown by the child", "by a print")


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
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    assert (tmp_path / "pids.last").exists(), "it was killed before its last act"
