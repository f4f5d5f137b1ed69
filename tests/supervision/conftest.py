"""Every run that a test starts is ended with it, whatever it left alive."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tasks.supervision import launch
from tests.supervision import fakes


@pytest.fixture(autouse=True)
def use_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launched agent is the real one with a fake training and a fake evaluation."""
    monkeypatch.setenv("PYTHONPATH", str(fakes.ROOT))
    monkeypatch.setattr(launch, "AGENT", "tests.supervision.fakes:agent_main")


@pytest.fixture(autouse=True)
def end_what_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for process in processes_of(tmp_path):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process but this one that names `folder` on its command line."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(process)
    return found
