import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.loader.settings import LoaderSettings, Measurement, read_settings, write_settings


def test_settings_come_back_as_they_were(tmp_path: Path) -> None:
    measured = (Measurement(workers=0, samples_per_s=1920.5, first_batch_s=0.05),)
    settings = LoaderSettings(
        workers=0, prefetch=2, reason="0 workers: 1,920 samples/s", measurements=measured
    )
    write_settings(tmp_path / "loader.json", settings)
    assert read_settings(tmp_path / "loader.json") == settings


def test_a_missing_or_torn_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "loader.json"
    with pytest.raises(DataError, match=r"loader\.json: missing"):
        read_settings(path)
    path.write_text('{"workers": 1')
    with pytest.raises(DataError, match=r"loader\.json: .*delete it"):
        read_settings(path)


def test_they_are_read_without_torch() -> None:
    code = "import sys, tasks.loader.settings, tasks.loader.forkserver; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
