"""Deployments register on a real server, from either command, and the server keeps their forms' promises."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.services import BIN, Api, free_port
from tests.system.conftest import NIGHTLY, ONE_CLICK, Run

pytestmark = pytest.mark.system

EVERYBODYS = ["verify/project", "evaluate/project", "doctor/project"]
CONFIGS = ["digits-chat", "digits-clip", "open-clip-external", "phantoms-ct", "reinforced-clip"]
ALL = [*(f"{flow}/{name}" for name in CONFIGS for flow in ("build", "pipeline")), *EVERYBODYS]
STANDING = ["tarmac-zombies", "tarmac-take-up", "tarmac-give-up", "tarmac-verify-project"]


def states(done: Any, kind: str = "deployments") -> dict[str, str]:
    """The state of each deployment or automation that a `tarmac deploy --json` names."""
    assert done.returncode == 0, done.stdout + done.stderr
    return {entry["name"]: entry["state"] for entry in json.loads(done.stdout)[kind]}


def automations(api: Api) -> dict[str, dict[str, Any]]:
    found = api.filter("automations")
    assert len({entry["name"] for entry in found}) == len(found), "one is there twice"
    return {entry["name"]: entry for entry in found}


def test_tarmac_deploy_makes_the_pool_and_all_deployments(
    api: Api, deployed: list[dict[str, Any]], project: Path
) -> None:
    assert api.get("/work_pools/tarmac")["type"] == "process"
    assert [entry["name"] for entry in deployed] == ALL
    assert {entry["name"]: entry["schedule"] for entry in deployed if entry["schedule"]} == {
        NIGHTLY: "0 2 * * * UTC"
    }
    for entry in deployed:
        found = api.deployment(entry["name"])
        assert entry["url"] == f"{api.ui}/deployments/deployment/{found['id']}"
        assert found["description"] and {"tarmac", "take-up"} <= set(found["tags"])
        assert found["global_concurrency_limit"] is None, "its lease would end healthy runs"
        assert found["enforce_parameter_schema"]
        [step] = found["pull_steps"]
        assert list(step.values()) == [{"directory": str(project)}]
        assert re.fullmatch("project-[0-9a-f]{6}", found["work_queue_name"])
    assert api.deployment(ONE_CLICK)["parameters"] == {"config": "configs/digits-clip.yaml", "overrides": {}}
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
    assert schema["properties"]["config"]["enum"] == [f"configs/{name}.yaml" for name in CONFIGS]
    assert {name: schema["properties"][name]["type"] for name in ("fresh", "rehash", "accept_loss")} == (
        dict.fromkeys(("fresh", "rehash", "accept_loss"), "boolean")
    )
    fields = schema["definitions"]["Overrides"]["properties"]
    assert {name: _type(field) for name, field in fields.items()} == {
        "steps": "integer",
        "batch_size": "integer",
        "lr": "number",
        "seed": "integer",
        "set": "array",
    }
    assert all(field["description"] for field in (*fields.values(), *schema["properties"].values()))


def _type(field: dict[str, Any]) -> str:
    """The type of a field that may also be left empty."""
    return next(str(one["type"]) for one in field.get("anyOf", [field]) if one["type"] != "null")


BAD: dict[str, list[dict[str, Any]]] = {
    ONE_CLICK: [
        {"overrides": {"steps": "many"}},
        {"overrides": {"steps": 0}},
        {"overrides": {"stepz": 40}},
        {"overrides": {"set": "train.steps=1"}},
        {"overrides": {"set": ["train.steps"]}},
        {"config": "configs/nowhere.yaml"},
        {"fresh": "perhaps"},
        {"frsh": True},
    ],
    NIGHTLY: [{"config": "configs/nowhere.yaml"}, {"reash": True}],
    "verify/project": [
        {},
        {"dataset": ""},
        {"dataset": "data/digits", "level": "deep"},
        {"dataset": "data/digits", "levl": "full"},
    ],
    "evaluate/project": [{}, {"run": 5}, {"run": ""}, {"run": "3f9a", "step": 20}],
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, tried in BAD.items() for bad in tried])
def test_bad_and_unknown_values_are_refused_before_anything_runs(
    api: Api, deployed: object, name: str, bad: dict[str, Any]
) -> None:
    before = len(api.runs_of(name))
    refusal = api.start(name, **bad)
    assert refusal.status_code in (409, 422), refusal.text
    wrong = ["required", *bad, *bad.get("overrides", {})][-1]
    assert wrong in refusal.text
    assert len(api.runs_of(name)) == before


def test_again_changes_nothing(api: Api, deployed: object, run: Run) -> None:
    with _paused(api, NIGHTLY):
        before = [_written(api.deployment(name)) for name in ALL], automations(api)
        again = run("tarmac", "deploy", "--json")
        assert states(again) == dict.fromkeys(ALL, "unchanged")
        assert states(again, "automations") == dict.fromkeys(STANDING, "unchanged")
        assert ([_written(api.deployment(name)) for name in ALL], automations(api)) == before


def test_prefect_deploy_registers_the_same_from_the_generated_file(
    api: Api, deployed: object, run: Run
) -> None:
    assert run("tarmac", "deploy", "--write", "prefect-all.yaml").returncode == 0
    command = ("prefect", "--no-prompt", "deploy", "--all", "--prefect-file", "prefect-all.yaml")
    done = run(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    try:
        dry = json.loads(run("tarmac", "deploy", "--dry-run", "--json").stdout)["deployments"]
        assert [entry["name"] for entry in dry] == ALL
        for entry in dry:  # what Prefect's own command cannot say of a form, and its own idea of a version
            closed = {"parameter_openapi_schema.additionalProperties": [None, False]}
            entry["fields"].pop("version")
            assert entry["fields"] == closed, entry
    finally:
        assert states(run("tarmac", "deploy", "--json")) == dict.fromkeys(ALL, "changed")


def _written(deployment: dict[str, Any]) -> dict[str, Any]:
    """What registering writes; `last_polled` and `status` are the worker's."""
    return {name: value for name, value in deployment.items() if name not in ("last_polled", "status")}


def test_what_a_config_says_is_what_the_server_has(
    api: Api, deployed: object, project: Path, run: Run
) -> None:
    """A config comes, changes, trains no more and goes: shown first, and done then."""
    config = project / "configs/mine.yaml"
    text = (project / "configs/digits-clip.yaml").read_text().replace("name: digits-clip", "name: mine")
    text = text.replace('schedule: {cron: "0 2 * * *"}', "")
    build, pipeline, train = "build/mine", "pipeline/mine", "tarmac-train-mine"

    def deploy(*options: str, schedule: str = "") -> Any:
        config.write_text(text + (f"schedule: {schedule}\n" if schedule else ""))
        return run("tarmac", "deploy", "configs/mine.yaml", "--json", *options)

    first = deploy(schedule='{cron: "0 3 * * 1"}')
    assert states(first) == {build: "new", pipeline: "new", **dict.fromkeys(EVERYBODYS, "unchanged")}
    assert train not in automations(api)
    _switch(api, build, active=False)

    berlin = '{cron: "5 3 * * 1", timezone: Europe/Berlin, then: train}'
    dry = deploy("--dry-run", schedule=berlin)
    assert states(dry)[build] == "changed" and states(dry, "automations")[train] == "new"
    fields = json.loads(dry.stdout)["deployments"][0]["fields"]
    assert fields.pop("version")[1] != api.deployment(build)["version"]
    assert fields == {"schedule": ["0 3 * * 1 UTC", "5 3 * * 1 Europe/Berlin"]}
    assert api.deployment(build)["schedules"][0]["schedule"]["cron"] == "0 3 * * 1", "a dry run wrote"
    assert train not in automations(api)

    assert states(deploy(schedule=berlin), "automations")[train] == "new"
    [schedule] = api.deployment(build)["schedules"]
    assert schedule["schedule"]["timezone"] == "Europe/Berlin"
    assert not schedule["active"], "a paused schedule woke"
    assert api.deployment(pipeline)["schedules"] == []
    assert automations(api)[train]["actions"][0]["deployment_id"] == api.deployment(pipeline)["id"]

    assert states(deploy(), "automations")[train] == "removed"
    assert train not in automations(api) and api.deployment(build)["schedules"] == []

    assert states(deploy(schedule=berlin), "automations")[train] == "new"
    config.unlink()
    rest = run("tarmac", "deploy", "--json", "--dry-run")
    assert {name: state for name, state in states(rest).items() if state == "removed"} == (
        dict.fromkeys((build, pipeline), "removed")
    )
    assert api.deployment(build), "a dry run removed"
    assert states(run("tarmac", "deploy", "--json"))[build] == "removed"
    for name in (build, pipeline):
        assert api.ask("GET", f"/deployments/name/{name}").status_code == 404
    assert train not in automations(api)


def test_a_config_that_cannot_be_deployed_does_not_stop_the_others(
    deployed: object, project: Path, run: Run
) -> None:
    later = project / "configs/later.yaml"
    text = (project / "configs/digits-clip.yaml").read_text()
    later.write_text(text.replace("digits-clip", "later").replace("recipe: clip", "recipe: futurist"))
    try:
        done = run("tarmac", "deploy")
        assert done.returncode == 0, done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert "configs/later.yaml" in done.stderr and "futurist" in done.stderr
        named = run("tarmac", "deploy", "configs/later.yaml")
        assert named.returncode == 2 and "futurist" in named.stderr and named.stdout == ""
    finally:
        later.unlink()


def test_another_folder_takes_nothing_over_by_accident(
    api: Api, deployed: object, project: Path, run: Run, env: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(project / "configs", tmp_path / "configs")
    shutil.copytree(project / "data/raw", tmp_path / "data/raw")

    def deploy(*arguments: str) -> Any:
        command = [BIN / "tarmac", "deploy", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)

    before = _written(api.deployment(NIGHTLY))
    refused = deploy("configs/digits-clip.yaml")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1, refused.stderr
    assert f"{NIGHTLY} belongs to {project}" in refused.stderr and "--take-over" in refused.stderr
    assert _written(api.deployment(NIGHTLY)) == before

    own = tmp_path / "configs/own.yaml"
    text = (tmp_path / "configs/digits-chat.yaml").read_text().replace("name: digits-chat", "name: own")
    own.write_text(text[: text.index("\ntrain:")] + "\n")
    mine = deploy("configs/own.yaml", "--json")
    of_folder = dict.fromkeys((f"{flow}/{tmp_path.name}" for flow in ("verify", "evaluate", "doctor")), "new")
    assert states(mine) == {"build/own": "new", **of_folder}
    assert api.deployment("build/own")["work_queue_name"] != api.deployment(NIGHTLY)["work_queue_name"]

    taken = deploy("configs/digits-clip.yaml", "--take-over", "--json")
    assert states(taken)[NIGHTLY] == "changed"
    [step] = api.deployment(NIGHTLY)["pull_steps"]
    assert list(step.values()) == [{"directory": str(tmp_path)}]
    assert states(run("tarmac", "deploy", "--take-over", "--json"))[NIGHTLY] == "changed"
    own.unlink()
    assert states(deploy("--take-over", "--dry-run", "--json"))["build/own"] == "removed"


def test_what_an_operator_has_set_on_a_page_stays(api: Api, deployed: object, run: Run) -> None:
    found = api.deployment(NIGHTLY)
    path = f"/deployments/{found['id']}"
    options = {"collision_strategy": "CANCEL_NEW"}
    variables = {
        **found["job_variables"],
        "env": {**found["job_variables"]["env"], "TEAM": "a"},
        "label": "a",
    }
    change = {"tags": ["team-a", "tarmac"], "job_variables": variables, "work_pool_name": "tarmac"}
    change |= {"concurrency_limit": 1, "concurrency_options": options, "work_queue_name": "default"}
    api.ask("PATCH", path, change).raise_for_status()
    more = {"schedule": {"interval": 86400}, "active": False}
    api.ask("POST", f"{path}/schedules", [more]).raise_for_status()
    try:
        assert states(run("tarmac", "deploy", "--json"))[NIGHTLY] == "changed"
        kept = api.deployment(NIGHTLY)
        assert set(kept["tags"]) == {"team-a", "tarmac", "take-up", "digits-clip"}
        assert kept["global_concurrency_limit"]["limit"] == 1
        assert kept["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
        assert kept["job_variables"] == variables
        assert kept["work_queue_name"] == found["work_queue_name"], "what is ours is mended"
        assert len(kept["schedules"]) == 2
        assert states(run("tarmac", "deploy", "--json"))[NIGHTLY] == "unchanged"
    finally:
        [made] = [one for one in api.deployment(NIGHTLY)["schedules"] if one["slug"] is None]
        api.ask("DELETE", f"{path}/schedules/{made['id']}").raise_for_status()
        own = {name: found[name] for name in ("tags", "job_variables", "work_pool_name", "work_queue_name")}
        api.ask(
            "PATCH", path, {**own, "concurrency_limit": None, "concurrency_options": None}
        ).raise_for_status()


def test_a_configs_limit_is_the_deployments_and_another_run_waits(
    api: Api, deployed: object, project: Path, run: Run
) -> None:
    config = project / "configs/limited.yaml"
    text = (project / "configs/digits-clip.yaml").read_text().replace("name: digits-clip", "name: limited")
    text = text.replace('schedule: {cron: "0 2 * * *"}', "")
    limit = 'schedule: {cron: "0 3 * * 1", limit: 1}\n'
    config.write_text(text + limit)
    try:
        first = run("tarmac", "deploy", "configs/limited.yaml", "--json")
        assert states(first)["build/limited"] == "new"
        for name in ("build/limited", "pipeline/limited"):
            found = api.deployment(name)
            assert found["global_concurrency_limit"]["limit"] == 1
            assert "limited" in found["tags"], "no filter by config"
        before = found["version"]
        assert re.fullmatch(r"[\w.]+-[0-9a-f]{8}", before)
        assert run("tarmac", "deploy").returncode == 0, "the forms of the others offer it"
        assert set(states(run("tarmac", "deploy", "--json")).values()) == {"unchanged"}
        config.write_text(text + limit.replace("limit: 1", "limit: 2"))
        dry = json.loads(run("tarmac", "deploy", "configs/limited.yaml", "--dry-run", "--json").stdout)
        fields = dry["deployments"][0]["fields"]
        assert fields.pop("version")[0] == before
        assert fields == {"concurrency_limit": [1, 2]}
        assert run("tarmac", "deploy").returncode == 0
        assert api.deployment("build/limited")["global_concurrency_limit"]["limit"] == 2
        config.write_text(text)
        assert run("tarmac", "deploy").returncode == 0
        assert api.deployment("build/limited")["global_concurrency_limit"]["limit"] == 2, "the page's stays"
    finally:
        config.unlink()
        assert run("tarmac", "deploy").returncode == 0


def test_two_folders_of_one_name_have_deployments_of_their_own(
    api: Api, deployed: object, project: Path, run: Run, env: dict[str, str], tmp_path: Path
) -> None:
    """And what was registered under other names for this folder goes at the next deploy."""
    twin = tmp_path / "project"
    (twin / "configs").mkdir(parents=True)
    text = (project / "configs/digits-chat.yaml").read_text().replace("name: digits-chat", "name: twin")
    (twin / "configs/twin.yaml").write_text(text[: text.index("\ntrain:")] + "\n")
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(twin)}}
    body = {
        "name": "dataset",
        "flow_id": api.deployment("verify/project")["flow_id"],
        "entrypoint": "flows.verify.verify_flow",
        "tags": ["tarmac"],
        "pull_steps": [step],
    }
    former = api.ask("POST", "/deployments/", body).raise_for_status().json()["id"]
    act = {
        "name": "tarmac-verify",
        "trigger": {"type": "event", "posture": "Reactive", "expect": ["never"], "threshold": 1, "within": 0},
        "actions": [{"type": "do-nothing"}],
        "owner_resource": f"prefect.deployment.{former}",
    }
    api.ask("POST", "/automations/", act).raise_for_status()

    def deploy() -> Any:
        command = [BIN / "tarmac", "deploy", "--json"]
        return subprocess.run(command, cwd=twin, env=env, capture_output=True, text=True, timeout=120)

    first = states(deploy())
    [name] = [name for name, state in first.items() if name.startswith("verify/") and state == "new"]
    assert re.fullmatch("verify/project-[0-9a-f]{6}", name)
    assert first["verify/dataset"] == "removed"
    assert api.ask("GET", "/deployments/name/verify/dataset").status_code == 404
    assert "tarmac-verify" not in automations(api), "what would start it is still there"
    assert [api.deployment(one)["work_queue_name"] for one in (name, "build/twin")] == [
        name.partition("/")[2]
    ] * 2
    assert set(states(deploy()).values()) == {"unchanged"}
    assert states(run("tarmac", "deploy", "--json")) == dict.fromkeys(ALL, "unchanged")


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
        assert "tarmac up" in done.stderr
        assert "PREFECT_API_URL" in done.stderr
