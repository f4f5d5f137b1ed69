"""A built and published dataset that the tests of repair damage."""

from pathlib import Path

import pytest

from tests.dataset import damage
from tests.dataset.damage import Built


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return damage.pictures(tmp_path)
