"""A server that is away for a minute, and a database that restarts, cost a training nothing, and a run that is
just starting a few minutes."""

from __future__ import annotations

import signal
import time
import uuid
from collections.abc import Iterator

import pytest

from tests.services import Postgres, postgres_cluster, until
from tests.system.lab import LONG, Lab, checkpoints_of, open_lab, record_of

pytestmark = pytest.mark.system
OUTAGE_S = 60.0
STEPS = 30
SHORT = ("train.checkpoint_every=15", "evaluate.every=30", "train.batch_size=8", "loader.workers=0")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A cluster of its own: it restarts, and no other project has its deployments there."""
    with postgres_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Lab]:
    """On PostgreSQL, with a GPU for each of two runs."""
    gpus = f"GPU-{uuid.uuid4()},GPU-{uuid.uuid4()}"
    settings = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": postgres.url, "CUDA_VISIBLE_DEVICES": gpus}
    with open_lab(tmp_path_factory.mktemp("outages"), **settings) as lab:
        yield lab


@pytest.mark.proof
def test_runs_complete_and_obey_after_an_outage_of_server_and_database(lab: Lab, postgres: Postgres) -> None:
    other = lab.start("pipeline/rival", *LONG, seed=1, steps=50_000)
    rival = lab.training_of(other)
    flow_run = lab.start("pipeline/digits-clip", *SHORT, seed=1, steps=STEPS)
    run = lab.training_of(flow_run)
    [rank] = [one for one in lab.processes_of(run) if "tasks.training.rank" in one.cmdline()]
    rank.suspend()  # or the training might be over before the server is back
    lab.change_raw()
    late = lab.start_build("build/digits-clip")
    until("its first start", lambda: lab.state(late) == "PENDING", 120, pause_s=0.05)
    lab.end("server", signal.SIGKILL)
    time.sleep(OUTAGE_S)
    lab.start_server()
    assert lab.cancel(other) < 120
    assert record_of(rival)["state"] == "cancelled" and checkpoints_of(rival) != []
    postgres.call("restart")
    rank.resume()
    assert lab.api.completed(late, 420)["run_count"] == 1, "its first start came to nothing"
    ended = lab.api.completed(flow_run, 420)
    assert ended["run_count"] == 1
    assert "CRASHED" not in lab.history(flow_run) + lab.history(other)
    assert len(record_of(run)["attempts"]) == 1
    # The server takes the states of task runs from events, some seconds after the flow run's own.
    until(
        "the states of its task runs",
        lambda: {one["state_type"] for one in lab.api.task_runs(flow_run)} == {"COMPLETED"},
        60,
    )
