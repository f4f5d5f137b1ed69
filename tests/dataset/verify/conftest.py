"""A dataset that all tests of verify copy before they damage it."""

import shutil
from pathlib import Path

import pytest

from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
from tests.dataset import raw


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published dataset of two splits; nobody may change it."""
    folder = tmp_path_factory.mktemp("sound")
    raw.pictures(folder / "raw", 120)
    result = build(raw.config(folder / "raw", folder / "out", splits={"val": 0.25}))
    versions.publish(folder / "out", result.version, 3)
    return folder / "out"


@pytest.fixture
def dataset(sound: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "out", symlinks=True))


@pytest.fixture
def version(sound: Path, tmp_path: Path) -> Path:
    """A copy of the version outside of any dataset, whose name shows nothing of its content."""
    return Path(shutil.copytree(versions.resolve(sound), tmp_path / "version"))
