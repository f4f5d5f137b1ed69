"""CT volumes as NPZ files."""

from __future__ import annotations

from pathlib import Path

from tasks.core.schema import Config
from tests.dataset import raw


def make(folder: Path) -> Config:
    raw.volumes(folder, 6)
    return raw.volume_config(folder, folder.parent / "out")
