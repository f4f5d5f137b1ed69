"""Which flow runs a worker starts again when it is started, and what their guards report, to a server that only
records it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import prefect
import psutil
import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed, Failed, Pending, Running

from flows.operate import automations, folder, recovery
from tasks import guard
from tests.services import until
from tests.web import answering_server

WORKER = "machine project"


@dataclass
class Server:
    """Lists its flow runs by state, and records which of them were set to which state."""

    url: str = ""
    runs: list[FlowRun] = field(default_factory=list)
    is_switched_on: bool = True
    reported: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, state: State, run_count: int = 1, worker: str = WORKER) -> FlowRun:
        labels = {"prefect.worker.name": worker}
        run = FlowRun(flow_id=uuid4(), name=name, state=state, run_count=run_count, labels=labels)
        run.state_type = state.type
        self.runs.append(run)
        return run

    def answer(self, path: str, body: Any) -> Any:
        if path.endswith("/admin/version"):
            return prefect.__version__
        if "/csrf-token" in path:
            return None  # as a server that needs none
        if path.endswith("/flow_runs/filter"):
            wanted = body["flow_runs"]["state"]["type"]["any_"]
            found = [run for run in self.runs if run.state_type and run.state_type.value in wanted]
            return [run.model_dump(mode="json") for run in found[body["offset"] :]]
        if path.endswith("/automations/filter"):
            made = automations.take_up().model_dump(mode="json")
            return [{**made, "id": str(uuid4()), "enabled": self.is_switched_on}]
        [run] = [run for run in self.runs if str(run.id) in path]
        if path.endswith("/set_state"):
            state = State.model_validate(body["state"])
            run.state, run.state_type = state, state.type
            self.reported.append((run.name, state.name or ""))
            return {"state": body["state"], "status": "ACCEPT", "details": {"type": "accept_details"}}
        return run.model_dump(mode="json")


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        found = made.answer(path, json.loads(body or "null"))
        return 404 if found is None else 200, json.dumps(found).encode()

    with answering_server(answer) as address:
        made.url = f"{address}/api"
        with temporary_settings({PREFECT_API_URL: made.url}):
            yield made


@pytest.fixture
def living(tmp_path: Path) -> Iterator[str]:
    """The id of a flow run that has a process, which does nothing."""
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect/engine.py").write_text("import time\ntime.sleep(300)\n")
    identity = str(uuid4())
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect.engine"],
        cwd=tmp_path,
        env={**os.environ, "PREFECT__FLOW_RUN_ID": identity, "PYTHONSAFEPATH": "", "PYTHONPATH": ""},
    )
    yield identity
    process.kill()
    process.wait()


def test_what_has_no_process_starts_again(server: Server, living: str) -> None:
    server.add("lives", Running()).id = UUID(living)
    server.add("lost", Running())
    server.add("of another worker", Running(), worker="elsewhere project")
    server.add("crashed", Crashed())
    server.add("interrupted for the twelfth time", Crashed(name="Interrupted"), run_count=12)
    server.add("crashed long ago", Crashed(timestamp=datetime.now(UTC) - timedelta(days=8)))
    server.add("crashed at its first start", Crashed(), run_count=0)
    server.add("never began", Pending(name="Submitting"), run_count=0)
    interrupted = "interrupted for the twelfth time"
    taken_up = ["lost", "crashed", interrupted, "crashed at its first start", "never began"]
    assert recovery.take_up_lost(WORKER) == taken_up
    again = [(name, "AwaitingRetry") for name in taken_up]
    assert server.reported == [("lost", "Crashed"), *again]


def test_what_the_server_has_passed_over_starts_again(server: Server) -> None:
    long_ago = datetime.now(UTC) - timedelta(minutes=2)
    server.add("passed over", Crashed(timestamp=long_ago), run_count=0)
    server.add("before it had a worker", Crashed(timestamp=long_ago), run_count=0).labels = {}
    server.add("left to the automation", Crashed())
    server.add("of another worker", Crashed(timestamp=long_ago), worker="elsewhere project")
    server.add("runs", Running())
    assert recovery.take_up_missed(WORKER) == ["passed over", "before it had a worker"]
    server.is_switched_on = False
    server.add("switched off", Crashed(timestamp=long_ago))
    assert recovery.take_up_missed(WORKER) == []
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert recovery.take_up_missed(WORKER) == []


def test_nothing_starts_again_where_somebody_has_switched_that_off(server: Server) -> None:
    server.is_switched_on = False
    server.add("lost", Running())
    server.add("crashed", Crashed())
    assert recovery.take_up_lost(WORKER) == []
    assert server.reported == [("lost", "Crashed")], "but the server knows that it ended"


def test_a_worker_that_ends_leaves_nothing_running(
    server: Server, living: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.add("lives", Running()).id = UUID(living)
    server.add("lost", Running())
    recovery.mark_lost(WORKER)
    assert server.reported == [("lost", "Interrupted")], "not Crashed, which counts"
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        recovery.mark_lost(WORKER)
    assert "the server does not answer (ConnectError)" in capsys.readouterr().err


def test_a_training_that_nobody_watches_is_reported(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "agent_is_alive", lambda run: run.name != "over")
    for name in ("watched", "unwatched", "over", "waits"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")

    def add(state: State, run: str) -> UUID:
        ended = server.add(f"{run} · pipeline", state)
        ended.labels = {**ended.labels, "tarmac.run": str(tmp_path / run)}
        return ended.id

    long_ago = datetime.now(UTC) - timedelta(days=8)
    add(Failed(), "over")
    add(Crashed(timestamp=long_ago), "watched")
    add(Running(), "watched")
    add(Crashed(), "waits")
    lost = add(Crashed(timestamp=long_ago), "unwatched")
    page = f"{server.url.removesuffix('/api')}/runs/flow-run/{lost}"
    line = f"unwatched · pipeline is Crashed, its training goes on; Retry on {page}"
    assert recovery.unwatched(WORKER) == {str(lost): line}
    server.is_switched_on = False
    assert len(recovery.unwatched(WORKER)) == 2, "who waits to be taken up waits in vain"
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert recovery.unwatched(WORKER) == {}


FLOW = """\
import os, signal, sys
from types import SimpleNamespace
from prefect.settings import PREFECT_API_URL, temporary_settings
from tasks import guard
with temporary_settings({PREFECT_API_URL: sys.argv[1]}):
    guard.start_guard(SimpleNamespace(id=sys.argv[2], run_count=1))
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("end", "reported"), [("killed", [("flow", "Crashed")]), ("done", [])])
def test_a_killed_flow_is_reported_by_its_guard(server: Server, end: str, reported: list[Any]) -> None:
    run = server.add("flow", Running())
    subprocess.run([sys.executable, "-c", FLOW, server.url, str(run.id), end], timeout=60)
    until("the end of the guard", lambda: not _guards(run), 60)
    assert server.reported == reported


def _guards(run: FlowRun) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cmdline()[1:4] == ["-m", guard.__name__, str(run.id)]:
                found.append(process.pid)
    return found


def test_a_worker_is_of_one_machine_and_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Host and folder may be called alike on two machines that share a server."""
    here, there = tmp_path / "here-id", tmp_path / "there-id"
    here.write_text("3f0c\n")
    there.write_text("9a1e\n")
    names, queues = [], []
    for place in (tmp_path / "a" / "my project", tmp_path / "b" / "my project"):
        place.mkdir(parents=True)
        monkeypatch.chdir(place)
        queues.append(folder.queue_name())
        assert folder.worker_name(here) == folder.worker_name(here)
        names += [folder.worker_name(one) for one in (here, there, tmp_path / "none")]
    assert len(set(names)) == len(names)
    assert all(" my project " in name for name in names)
    assert len(set(queues)) == 2 and all(queue.startswith("my-project-") for queue in queues)
