"""Tarmac's processes find Tarmac's packages, and a program of the user's finds the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.core.process import child_environment, users_environment

ROOT = Path(__file__).parents[2]
SHOW = "import tasks; print(tasks.__file__)"
NESTED = """
import subprocess, sys
from tasks.core.process import child_environment, users_environment
for environment in (child_environment(), users_environment()):
    subprocess.run([sys.executable, "-c", "import tasks; print(tasks.__file__)"], env=environment, check=True)
"""


def output(code: str, env: dict[str, str], cwd: Path) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").touch()
    return tmp_path


def test_each_finds_its_own_in_the_working_directory(project: Path) -> None:
    assert output(SHOW, child_environment(), project) != [str(project / "tasks.py")]
    assert output(SHOW, users_environment(), project) == [str(project / "tasks.py")]


def test_each_finds_its_own_on_the_path(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(project))
    elsewhere = project / "elsewhere"
    elsewhere.mkdir()
    ours, users = output(NESTED, child_environment(), elsewhere)
    assert (Path(ours).parent.name, Path(users)) == ("tasks", project / "tasks.py")
    assert users_environment() == dict(os.environ)


def test_tarmacs_is_found_where_somebody_has_put_the_project_before_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Prefect does with the process of a flow run."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(project), str(ROOT)]))
    assert output(SHOW, child_environment(), project) != [str(project / "tasks.py")]


def test_workers_find_tarmacs_where_a_project_has_its_own(project: Path) -> None:
    """A pool's forkserver imports the function's module before multiprocessing hands it a path."""
    code = (
        "import sys; sys.path.pop(0)\n"
        "from tasks.core.engines.local import map_here\n"
        "from tasks.core.units import format_duration\n"
        "print(*map_here(format_duration, [60], 1))"
    )
    assert output(code, {**users_environment(), "PYTHONPATH": str(ROOT)}, project)
