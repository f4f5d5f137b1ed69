"""Deployments register on a real server, from either command, and the server keeps their forms' promises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services import Api, free_port
from tests.system.conftest import NIGHTLY, ONE_CLICK, Run

pytestmark = pytest.mark.system


def test_tarmac_deploy_makes_the_pool_and_both_deployments(
    api: Api, deployed: list[dict[str, Any]], project: Path
) -> None:
    assert api.get("/work_pools/tarmac")["type"] == "process"
    assert [entry["name"] for entry in deployed] == [NIGHTLY, ONE_CLICK]
    assert [entry["schedule"] for entry in deployed] == ["0 2 * * * UTC", None]
    for entry in deployed:
        found = api.deployment(entry["name"])
        assert entry["url"] == f"{api.ui}/deployments/deployment/{found['id']}"
        assert found["parameters"]["config"] == "configs/digits-clip.yaml"
        assert found["description"] and "tarmac" in found["tags"]
        assert found["global_concurrency_limit"]["limit"] == 1
        assert found["concurrency_options"]["collision_strategy"] == "ENQUEUE"
        [step] = found["pull_steps"]
        assert list(step.values()) == [{"directory": str(project)}]
    [schedule] = api.deployment(NIGHTLY)["schedules"]
    assert schedule["schedule"]["cron"] == "0 2 * * *"
    assert schedule["active"]


def test_the_schedule_plans_the_next_nights(api: Api, deployed: object) -> None:
    planned = api.planned_runs(NIGHTLY)
    assert {run["state_type"] for run in planned} == {"SCHEDULED"}
    assert all("T02:00:00" in run["expected_start_time"] for run in planned)


def test_the_form_has_typed_fields(api: Api, deployed: object) -> None:
    schema = api.deployment(ONE_CLICK)["parameter_openapi_schema"]
    assert schema["required"] == ["config"]
    assert schema["properties"]["fresh"]["type"] == "boolean"
    fields = schema["definitions"]["Overrides"]["properties"]
    assert {name: _type(field) for name, field in fields.items()} == {
        "steps": "integer",
        "batch_size": "integer",
        "lr": "number",
        "seed": "integer",
        "set": "array",
    }
    assert all(field["description"] for field in fields.values())


def _type(field: dict[str, Any]) -> str:
    """The type of a field that may also be left empty."""
    return next(str(one["type"]) for one in field.get("anyOf", [field]) if one["type"] != "null")


def test_bad_values_are_refused_before_anything_runs(api: Api, deployed: object) -> None:
    before = len(api.runs_of(ONE_CLICK))
    for overrides in ({"steps": "many"}, {"steps": 0}, {"stepz": 40}, {"set": "train.steps=1"}):
        refusal = api.start(ONE_CLICK, overrides=overrides)
        assert refusal.status_code in (409, 422), refusal.text
        assert next(iter(overrides)) in refusal.text
    assert len(api.runs_of(ONE_CLICK)) == before


def test_again_changes_nothing_by_either_command(api: Api, deployed: object, run: Run) -> None:
    with _paused(api, NIGHTLY):
        before = [_written(api.deployment(name)) for name in (NIGHTLY, ONE_CLICK)]

        again = run("tarmac", "deploy", "--json")
        rows = json.loads(again.stdout)["deployments"]
        assert [entry["state"] for entry in rows] == ["unchanged", "unchanged"]
        assert [_written(api.deployment(name)) for name in (NIGHTLY, ONE_CLICK)] == before

        prefect = run("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "deploy/prefect.yaml")
        assert prefect.returncode == 0, prefect.stdout + prefect.stderr
        after = run("tarmac", "deploy", "--json")
        rows = json.loads(after.stdout)["deployments"]
        assert [entry["state"] for entry in rows] == ["unchanged", "unchanged"]


def _written(deployment: dict[str, Any]) -> dict[str, Any]:
    """What registering writes; `last_polled` and `status` are the worker's."""
    return {name: value for name, value in deployment.items() if name not in ("last_polled", "status")}


def test_a_schedule_moves_with_what_it_starts(api: Api, deployed: object, project: Path, run: Run) -> None:
    config = project / "scheduled.yaml"
    text = (project / "configs/digits-clip.yaml").read_text().replace("name: digits-clip", "name: mine")

    def register(cron: str, then: str) -> list[tuple[str, str | None, str]]:
        config.write_text(text + f'schedule: {{cron: "{cron}", then: {then}}}\n')
        done = run("tarmac", "deploy", "scheduled.yaml", "--json")
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["deployments"]
        return [(row["name"], row["schedule"], row["state"]) for row in rows]

    build, pipeline = "build/mine", "pipeline/mine"
    assert register("0 3 * * 1", "build") == [(build, "0 3 * * 1 UTC", "new"), (pipeline, None, "new")]
    _switch(api, build, active=False)
    assert register("5 3 * * 1", "build") == [
        (build, "5 3 * * 1 UTC", "changed"),
        (pipeline, None, "unchanged"),
    ]
    assert not api.deployment(build)["schedules"][0]["active"], "a paused schedule woke"
    assert register("5 3 * * 1", "train") == [
        (build, None, "changed"),
        (pipeline, "5 3 * * 1 UTC", "changed"),
    ]
    assert api.deployment(build)["schedules"] == []
    assert api.deployment(pipeline)["parameters"]["config"] == "scheduled.yaml"

    values = yaml.safe_load(text)
    config.write_text(yaml.safe_dump({**values, "train": None, "evaluate": None}))
    done = run("tarmac", "deploy", "scheduled.yaml", "--json")
    assert [row["name"] for row in json.loads(done.stdout)["deployments"]] == [build]
    assert "pipeline/mine is still there without its schedule" in done.stderr
    assert api.deployment(pipeline)["schedules"] == []
    assert register("5 3 * * 1", "train")[1] == (pipeline, "5 3 * * 1 UTC", "changed")
    assert api.deployment(pipeline)["schedules"][0]["active"]


@contextmanager
def _paused(api: Api, name: str) -> Iterator[None]:
    """A deployment's one schedule is paused, and wakes after: other tests read what it plans."""
    _switch(api, name, active=False)
    try:
        yield
    finally:
        _switch(api, name, active=True)


def _switch(api: Api, name: str, active: bool) -> None:
    """Pause or wake a deployment's one schedule, as the switch on its page does."""
    found = api.deployment(name)
    [schedule] = found["schedules"]
    path = f"/deployments/{found['id']}/schedules/{schedule['id']}"
    api.ask("PATCH", path, {"active": active}).raise_for_status()


def test_without_a_server_the_line_says_how_to_start_one(run: Run) -> None:
    unset = run("tarmac", "deploy", unset=("PREFECT_API_URL",))
    dead = run("tarmac", "deploy", PREFECT_API_URL=f"http://127.0.0.1:{free_port()}/api")
    for done in (unset, dead):
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "prefect server start" in done.stderr
        assert "PREFECT_API_URL" in done.stderr
