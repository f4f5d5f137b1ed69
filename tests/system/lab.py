"""A server, a worker and a project that a test may kill and start again, and what a person would look at."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import ROOT
from tests.services import (
    BIN,
    ENDS,
    Api,
    end_all_in,
    engines_of,
    environment,
    free_port,
    server_command,
    until,
)
from tests.system.browser import Page

SHORT = ("train.checkpoint_every=4", "evaluate.every=4", "train.batch_size=8", "loader.workers=0")
LONG = ("train.checkpoint_every=5000", "evaluate.every=5000", "train.batch_size=8", "loader.workers=0")
UNTRACKED = "track.mode=disabled"


class Lab:
    """Each service is a session of its own. The worker sees one GPU of a name that nobody else has; torch
    without CUDA trains on the CPU all the same."""

    engines_of = staticmethod(engines_of)

    def __init__(self, folder: Path, **settings: str) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.gpu = f"GPU-{uuid.uuid4()}"
        self.env = {
            **environment(folder / "prefect", free_port()),
            "CUDA_VISIBLE_DEVICES": self.gpu,
            "PYTHONUNBUFFERED": "1",
            **settings,
        }
        self.api = Api(self.env["PREFECT_API_URL"])
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.changes = 0
        (self.project / "configs").mkdir(parents=True)
        config = (ROOT / "configs/digits-clip.yaml").read_text()
        (self.project / "configs/digits-clip.yaml").write_text(config)
        rival = config.replace("name: digits-clip", "name: rival")
        (self.project / "configs/rival.yaml").write_text(rival)

    def open(self) -> None:
        """Start everything, with the project's deployments."""
        self.tarmac("example", "digits")
        self.start_server()
        self.start_worker()

    def close(self) -> None:
        for name in list(self.processes):
            self.end(name, signal.SIGTERM)
        end_all_in(self.folder)
        shutil.rmtree(self.project / "data", ignore_errors=True)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def start_server(self) -> None:
        self._start("server", *server_command(self.env))
        until("the server's health", self.api.is_up, 240)

    def start_worker(self) -> None:
        self._start_worker_by("worker", str(BIN / "tarmac"), "up", "--only", "worker")

    def start_all(self) -> None:
        """Server and worker by one command."""
        self._start_worker_by("all", str(BIN / "tarmac"), "up")

    def _start_worker_by(self, name: str, *command: str) -> None:
        log = self.log(name)
        before = log.read_text().count("started!") if log.exists() else 0
        self._start(name, *command)
        process = self.processes[name]

        def is_started() -> bool:
            assert process.poll() is None, log.read_text()
            return log.read_text().count("started!") > before

        until("the worker's start", is_started, 300)

    def _start(self, name: str, *command: str) -> None:
        with self.log(name).open("ab") as output:
            self.processes[name] = subprocess.Popen(
                command,
                env=self.env,
                cwd=self.project,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, name: str, signum: signal.Signals) -> None:
        """Send the service this signal, and wait for its end. A killed one cannot end what it has started: the
        server or the worker itself is killed with it; flow runs go on."""
        process = self.processes.pop(name)
        parts = psutil.Process(process.pid).children() if signum == signal.SIGKILL else []
        for part in parts:
            part.suspend()  # or it would hear that its starter ends
        process.send_signal(signum)
        for part in parts:
            part.kill()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        psutil.wait_procs(parts, timeout=30)

    def tarmac(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [BIN / "tarmac", *arguments]
        return subprocess.run(
            command, cwd=self.project, env=self.env, capture_output=True, text=True, timeout=300
        )

    def start(self, deployment: str, *changes: str, **overrides: Any) -> str:
        """Start a run of the deployment; its id."""
        started = self.api.start(deployment, overrides={**overrides, "set": [*changes, UNTRACKED]})
        assert started.status_code == 201, started.text
        return str(started.json()["id"])

    def start_build(self, deployment: str) -> str:
        """Start a run of a deployment that trains nothing; its id."""
        return str(self.api.start(deployment).raise_for_status().json()["id"])

    def change_raw(self) -> None:
        """Replace a raw image by another, as a nightly synchronisation does."""
        images = sorted((self.project / "data/raw/digits").rglob("*.png"))
        self.changes += 1
        images[self.changes].write_bytes(images[-self.changes].read_bytes())

    def state(self, flow_run: str) -> str:
        return str(self.api.get(f"/flow_runs/{flow_run}")["state_type"])

    def state_name(self, flow_run: str) -> str:
        return str(self.api.get(f"/flow_runs/{flow_run}")["state_name"])

    def history(self, flow_run: str) -> list[str]:
        """The types of all states that it has had."""
        states = self.api.get(f"/flow_run_states/?flow_run_id={flow_run}")
        return [str(state["type"]) for state in states]

    def require_alive(self, flow_run: str) -> None:
        assert self.state(flow_run) not in ENDS, self.api.logs(flow_run)[-4000:]

    def run_of(self, flow_run: str) -> Path:
        """The folder of the run that it works on, once it is known."""

        def look() -> Path | None:
            self.require_alive(flow_run)
            return self.labelled_run_of(flow_run)

        found: Path = until("the run's folder", look, 420)
        return found

    def labelled_run_of(self, flow_run: str) -> Path | None:
        """The folder of the run that its label names, also once it is over; None without one."""
        label: str | None = self.api.get(f"/flow_runs/{flow_run}")["labels"].get("tarmac.run")
        return None if label is None else Path(label)

    def training_of(self, flow_run: str, after: int = 0) -> Path:
        """The folder of its run, once that trains and is past the step `after`."""
        run = self.run_of(flow_run)

        def trains() -> bool:
            self.require_alive(flow_run)
            return step_of(run) > after

        until("a training step", trains, 420)
        return run

    def adopted(self, flow_run: str, start: int, seconds: float) -> float:
        """Wait until the flow run watches the run that it has begun in its `start`th start; seconds until
        then. The raw data may have changed since."""
        began = time.monotonic()
        begun = self.run_of(flow_run)

        def watches() -> bool:
            run = self.api.get(f"/flow_runs/{flow_run}")
            if run["run_count"] != start or run["state_type"] != "RUNNING":
                return False
            tasks = self.api.task_runs(flow_run)
            return any(
                task["name"].startswith("train")
                and task["state_type"] == "RUNNING"
                and task["flow_run_run_count"] == start
                for task in tasks
            )

        until(f"start {start} of {flow_run}", watches, seconds)
        assert self.run_of(flow_run) == begun, "it has begun another run"
        return time.monotonic() - began

    def set_state(self, flow_run: str, force: bool = False, **state: Any) -> None:
        """Do what a button of the flow run's page does."""
        body = {"state": state, "force": force}
        answer = self.api.ask("POST", f"/flow_runs/{flow_run}/set_state", body).raise_for_status().json()
        assert answer["status"] == "ACCEPT", answer

    def address_of(self, flow_run: str) -> str:
        """The address of its page."""
        return f"{self.api.ui}/runs/flow-run/{flow_run}"

    def cancel(self, flow_run: str, page: Page | None = None, is_owner: bool = True) -> float:
        """Cancel it by the buttons of its page, or as they do, and wait until it is; seconds until then and,
        if it owns its run, until no process of that lives."""
        began = time.monotonic()
        run: str | None = self.api.get(f"/flow_runs/{flow_run}")["labels"].get("tarmac.run")
        run = run if is_owner else None
        if page is None:
            self.set_state(flow_run, type="CANCELLING", name="Cancelling")
        else:
            page.press(self.address_of(flow_run), "Cancel", "Confirm")
            began = time.monotonic()
        until("the end", lambda: self.state(flow_run) in ENDS, 180)
        assert self.state(flow_run) == "CANCELLED"
        until("the end of all processes", lambda: run is None or not self.processes_of(run), 60)
        assert "Traceback" not in self.api.logs(flow_run)
        took_s = time.monotonic() - began
        if page is not None:
            page.shows("Cancelled")
        return took_s

    def processes_of(self, text: object) -> list[psutil.Process]:
        """The project's processes with this text on their command line, such as the folder of their run."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(text) in " ".join(process.cmdline()) and process.cwd() == str(self.project):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@contextmanager
def open_lab(folder: Path, **settings: str) -> Iterator[Lab]:
    """A lab with everything started; nothing of it lives on, also where it does not start."""
    lab = Lab(folder, **settings)
    try:
        lab.open()
        yield lab
    finally:
        lab.close()


def step_of(run: Path) -> int:
    """Where the newest training process of the run stands; 0 before its first step."""
    try:
        phase = json.loads((run / "phases/rank_0.json").read_text())
    except (OSError, ValueError):
        return 0
    return 0 if phase["phase"] in ("start", "end") else int(phase["step"])


def record_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return found


def checkpoints_of(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step_*"))
