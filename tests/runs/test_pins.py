"""A run's pin on its version ends with the run's folder."""

import shutil
import socket
from pathlib import Path

from tasks.dataset import versions
from tasks.runs.plan import plan
from tests.runs.test_plan import make_version
from tests.supervision.fakes import make_config


def test_a_pin_tells_the_folder_of_its_run(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    run = plan(config, version)
    pin, held = tmp_path / "data/pins" / run.id, {version.name: [run.id]}
    assert pin.read_text() == f"{version.name}\n{run.path}\n{socket.gethostname()}\n"
    pin.write_text(f"{version.name}\n")  # as older versions of Tarmac wrote it
    assert plan(config, version) == run
    assert versions.pinned(tmp_path / "data") == held
    shutil.rmtree(run.path)
    assert versions.pinned(tmp_path / "data") == {}
