"""A run's pin on its version ends with the run's folder."""

import shutil
import socket
from pathlib import Path

from tasks.dataset.version import versions
from tasks.runs.plan import plan
from tests.runs.test_plan import changed, make_version
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


def test_two_runs_that_differ_in_name_only_have_a_pin_each(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    first = plan(config, version)
    second = plan(changed(config, "name", "twin"), version)
    elsewhere = plan(changed(config, "runs", tmp_path / "others"), version)
    assert first.id == second.id == elsewhere.id
    assert len(versions.pinned(tmp_path / "data")[version.name]) == 3
    assert plan(config, version) == first
    assert len(versions.pinned(tmp_path / "data")[version.name]) == 3, "planning again adds none"
    for run in (second, elsewhere):
        shutil.rmtree(run.path)
    assert versions.pinned(tmp_path / "data") == {version.name: [first.id]}
