"""Real trainings that become slow under `tarmac watch`: the cause is named unasked, and nothing healthy is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.stalls.contract import beside

pytestmark = pytest.mark.proof
SLOW: dict[str, str] = {
    "loader_bound": "loader.bound",
    "loader_bound_sleep": "loader.bound",
    "loader_bound_without_workers": "loader.bound",
    "loader_bound_without_workers_by_decoding": "loader.bound",
    "straggler": "loader.straggler",
    "pace_dropped": "pace.dropped",
    "pace_dropped_by_sleep": "pace.dropped",
    "epoch_gap": "epoch.gap",
    "memory_growing": "memory.growing",
    "memory_copied": "memory.growing",
    "validation_slow": "validation.slow",
    "tracker_slow": "tracker.slow",
}
HEALTHY = (
    "healthy",
    "healthy_workers",
    "healthy_without_workers",
    "healthy_noise",
    "healthy_validation",
    "healthy_memory",
)
SECONDS = {"memory_copied": 220}
AT_ONCE = 2
PROGRAM = "tests.stalls.slow_program"
CODES = frozenset(SLOW.values())


MLFLOW = (
    "mlflow-skinny", "cachetools", "click", "cloudpickle", "databricks-sdk", "google-auth", "importlib-metadata",
    "opentelemetry-api", "opentelemetry-sdk", "opentelemetry-proto", "opentelemetry-semantic-conventions", "protobuf",
    "sqlparse", "zipp",
)  # fmt: skip


def environment(kind: str) -> dict[str, str]:
    """The environment of a training, with the packages that only it needs."""
    env = {**os.environ, "SLOW_SECONDS": str(SECONDS.get(kind, 150)), "PYTHONUNBUFFERED": "1"}
    return {**env, "PYTHONPATH": beside(*MLFLOW)[0]} if kind == "tracker_slow" else env


def watched(kind: str) -> dict[str, Any]:
    training = [sys.executable, "-m", PROGRAM, kind]
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "watch", "--json", "--", *training],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(kind),
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def results() -> dict[str, Future[dict[str, Any]]]:
    pool = ThreadPoolExecutor(AT_ONCE)
    return {kind: pool.submit(watched, kind) for kind in (*SLOW, *HEALTHY)}


@pytest.mark.parametrize("kind", SLOW)
def test_what_makes_it_slow_is_named(kind: str, results: dict[str, Future[dict[str, Any]]]) -> None:
    found = results[kind].result()
    assert {one["code"] for one in found["findings"]} == {SLOW[kind]}
    assert all(one["severity"] == "warning" for one in found["findings"])


@pytest.mark.parametrize("kind", HEALTHY)
def test_nothing_healthy_is_slow(kind: str, results: dict[str, Future[dict[str, Any]]]) -> None:
    assert results[kind].result()["findings"] == []
