"""A folder of tars, for the tests of stores and of patterns."""

from __future__ import annotations

from pathlib import Path

import pytest

TRAIN = ["train/000000.tar", "train/000001.TAR", "train/000002.tar"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two splits of three tars, and what is none of the data."""
    for name in ("train/000000.tar", "train/000001.TAR", "train/000002.tar", "val/000000.tar", "read.me"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for hidden in (".git/x.tar", "__MACOSX/._000000.tar", "val/.000000.tar.part"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(b"")
    return tmp_path
