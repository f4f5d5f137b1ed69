"""The project that the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.birds import make_project


@pytest.fixture
def birds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with raw images in `birds` and a config `birds.yaml`."""
    monkeypatch.chdir(tmp_path)
    make_project(tmp_path)
    return tmp_path
