"""What a stage prints where standard error is no terminal."""

from __future__ import annotations

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
