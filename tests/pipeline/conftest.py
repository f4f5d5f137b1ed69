"""The command `tarmac` as a person runs it, in folders of its own, beside one Prefect server for all tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.services import environment, free_port, prefect_server, until

BIN = Path(sys.executable).parent
MARK = "TARMAC_TEST_MARK"


@dataclass
class Project:
    """A working folder with the config and the raw digits, and the processes that were started in it."""

    path: Path
    env: dict[str, str]
    overrides: list[str] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`tarmac` with these arguments, and the project's overrides where it takes a config."""
        changes = (
            [part for pair in self.overrides for part in ("--set", pair)]
            if "configs/" in str(arguments)
            else []
        )
        return subprocess.Popen(
            [str(BIN / "tarmac"), *arguments, *changes],
            cwd=self.path,
            env={**self.env, MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def tarmac(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same, waited for."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=400)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def processes(self) -> list[psutil.Process]:
        """Every process that descends from a command of this project, in whatever session."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill_everything(self) -> None:
        """SIGKILL to the whole tree, again until nothing is left."""
        deadline = time.monotonic() + 20
        while left := self.processes():
            assert time.monotonic() < deadline, left
            for process in left:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(left, timeout=1)

    @property
    def run(self) -> Path:
        """The folder of the only run."""
        (found,) = (self.path / "runs").glob("*/run.json")
        return found.parent

    def has(self, pattern: str) -> bool:
        return any(self.path.glob(pattern))

    def wait_for(self, what: str, found: Callable[[], object], process: subprocess.Popen[str]) -> None:
        """Wait until `found` holds; the process must not end before."""

        def look() -> object:
            assert process.poll() is None or found(), f"ended before {what}: {process.communicate()}"
            return found()

        until(what, look, 200, pause_s=0.02)


def make_project(path: Path, env: dict[str, str], raw: Path, *overrides: str) -> Project:
    """A project over the raw digits in `raw`."""
    path.mkdir(parents=True)
    (path / "configs").symlink_to(ROOT / "configs")
    return Project(path, env, [f"dataset.source.path={raw}/captions.csv", *overrides])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a running Prefect server."""
    home = tmp_path_factory.mktemp("prefect")
    env = environment(home, free_port())
    with prefect_server(env, home / "server.log"):
        yield env


@pytest.fixture
def no_server(tmp_path: Path) -> dict[str, str]:
    """An environment in which Prefect has to start its own temporary server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return {**kept, "PREFECT_HOME": str(tmp_path / "prefect")}
