"""What a stage prints where standard error is no terminal."""

from __future__ import annotations

import io
import threading
import time

import pytest

from tasks.core import screen
from tests.services import until


def test_a_line_that_does_not_change_is_printed_ever_more_rarely(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour in the queue, of which the reason changes once."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with screen.running("train") as show:
        for second in range(3600):
            now = float(second)
            show(0, 0, "waiting (Resources)" if second < 3000 else "waiting (Priority)")
    lines = capsys.readouterr().err.replace("\u202f", " ").splitlines()
    assert len(lines) == 16, lines
    assert lines[0].split() == ["train", "waiting", "(Resources)"]
    assert lines[3].endswith("waiting (Resources) (for 70 s)") and "(for 40 min)" in "\n".join(lines)
    assert lines[10].endswith("waiting (Priority)"), "a new reason is not held back"


def test_what_changes_is_printed_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with screen.running("train") as show:
        for second in range(102):
            now = float(second)
            show(second, 102, "steps")
    assert len(capsys.readouterr().err.splitlines()) == 10


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def to_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard error a terminal; in a fixture, pytest would replace it before the test."""
    found = Terminal()
    monkeypatch.setattr("sys.stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_line_that_is_printed_beside_a_bar_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = to_terminal(monkeypatch)
    monkeypatch.setattr(screen, "BAR_AFTER_S", 0.0)
    with screen.running("build") as show:
        show(3, 3, "samples")
        until("the bar", lambda: "3/3 samples" in terminal.getvalue(), 30)
        screen.finished("build", "3 read = 3 accepted", 1.0)
        screen.warn("memory is short")
    for mark in ("✓ build", "! memory is short"):
        before = terminal.getvalue().partition(mark)[0]
        assert before.endswith(("\n", "\x1b[2K", "\r")), before[-40:]


def test_a_stage_that_reports_nothing_has_a_bar_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = to_terminal(monkeypatch)
    with screen.running("build"):
        until("the bar", lambda: "build" in terminal.getvalue(), 30)
    assert terminal.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K"), "it is gone, and the cursor is back"


def test_a_short_stage_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = to_terminal(monkeypatch)
    monkeypatch.setattr(screen, "BAR_AFTER_S", 60.0)
    with screen.running("build") as show:
        show(3, 3, "samples")
    assert terminal.getvalue() == ""
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
