"""The loader's small dataset version, for measuring."""

from tests.loader.conftest import make_version as make_version
