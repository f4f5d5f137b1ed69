"""What a stage prints where standard error is no terminal."""

from __future__ import annotations

import io
import time

import pytest

from tasks.core import screen


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


def test_a_line_that_is_printed_beside_a_bar_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with screen.running("build") as show:
        show(3, 3, "samples")
        screen.finished("build", "3 read = 3 accepted", 1.0)
        screen.warn("memory is short")
    for mark in ("✓ build", "! memory is short"):
        before = terminal.getvalue().partition(mark)[0]
        assert before.endswith(("\n", "\x1b[2K", "\r")), before[-40:]
