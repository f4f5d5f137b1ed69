"""Runs that a real worker executes: the nightly rebuild, and the pipeline started at one click."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.services import Api, crowding
from tests.system.conftest import NIGHTLY, QUICK, STAGES, STEPS, Run, Watched

pytestmark = pytest.mark.system


def test_the_nightly_rebuild_completes(api: Api, worker: int, project: Path) -> None:
    started = api.start(NIGHTLY)
    assert started.status_code == 201, started.text
    api.completed(started.json()["id"], 240)
    assert (project / "data/digits/current/manifest.json").exists()
    names = {run["name"].rpartition("-")[0] for run in api.ended_tasks(started.json()["id"], 3)}
    assert names == {"build", "verify", "publish"}


def test_the_forms_values_arrive(one_click: Watched, api: Api) -> None:
    record = json.loads((one_click.run / "run.json").read_text())
    assert record["identity"]["steps"] == STEPS
    assert record["state"] == "succeeded"
    results = sorted(path.name for path in one_click.run.glob("eval_results/*.json"))
    assert results == ["step_20.json", "step_40.json"]
    assert api.get(f"/flow_runs/{one_click.id}")["parameters"]["overrides"] == QUICK


def test_progress_grew_in_the_ui(one_click: Watched) -> None:
    assert {"train", "evaluate"} <= set(one_click.progress)
    for stage, seen in one_click.progress.items():
        assert seen == sorted(seen), f"{stage} went back: {seen}"
        assert seen[-1] == 100, f"{stage} ended at {seen[-1]}"
    assert any(len(seen) > 1 for seen in one_click.progress.values()), one_click.progress


def test_a_run_has_few_coarse_tasks(one_click: Watched, api: Api) -> None:
    runs = api.ended_tasks(one_click.id, len(STAGES))
    assert sorted(run["name"].rpartition("-")[0] for run in runs) == sorted(STAGES)
    assert {run["state_type"] for run in runs} == {"COMPLETED"}


def test_a_run_leaves_its_page(one_click: Watched, api: Api, project: Path) -> None:
    markdown = api.page_of(one_click.id)
    report = one_click.run / "report.html"
    assert report.is_file() and str(report.relative_to(project)) in markdown["data"]
    assert markdown["key"] == f"run-{json.loads((one_click.run / 'run.json').read_text())['id']}"
    assert "accuracy" in markdown["data"]
    kinds = {entry["type"] for entry in api.artifacts(one_click.id)}
    assert {"progress", "table", "markdown"} <= kinds


def test_orchestration_costs_seconds(
    one_click: Watched, run: Run, api: Api, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another run from the terminal on the same server: all that is not a stage's own time is overhead."""
    once = f"train.steps={STEPS}", f"train.checkpoint_every={STEPS}", f"evaluate.every={STEPS}"
    changes = [f"--set={change}" for change in (*once, "train.seed=1", "loader.workers=0")]
    began = time.monotonic()
    done = run("tarmac", "run", "configs/digits-clip.yaml", "--json", *changes)
    wall = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    stages = {stage["stage"]: stage["seconds"] for stage in json.loads(done.stdout)["stages"]}
    assert set(stages) == set(STAGES)
    overhead = wall - sum(stages.values())
    record_property("orchestration_s", round(overhead, 2))
    with capsys.disabled():
        print(f"\norchestration {overhead:.1f} s of {wall:.1f} s; stages {stages}")
    assert 0 < overhead < 10 * crowding()
    completed = {"state": {"type": {"any_": ["COMPLETED"]}}}
    [last] = api.filter("flow_runs", flow_runs=completed, sort="END_TIME_DESC", limit=1)
    assert last["deployment_id"] is None, "the run of the terminal is not on the server"
