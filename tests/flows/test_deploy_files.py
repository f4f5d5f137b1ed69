"""The files in deploy/ use settings and commands that exist. System tests run the units' commands and the script;
nothing here can run Docker."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import prefect.settings
import pytest
import yaml
from prefect.client.schemas.actions import WorkPoolCreate

from flows.cli import app
from flows.operate.offers import JOB_VARIABLES
from tests.test_layers import imported

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.iterdir() if path.is_file())


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def _understood(words: list[str]) -> None:
    assert words[0].endswith("tarmac")
    app.parse_args(words[1:], print_error=False, exit_on_error=False)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_prefect_knows_every_setting_that_is_named(file: Path) -> None:
    named = set(re.findall(r"\bPREFECT_[A-Z0-9_]+\b", file.read_text()))
    assert {name for name in named if not hasattr(prefect.settings, name)} == set()


@pytest.mark.parametrize("unit", ["tarmac-server.service", "tarmac-worker.service"])
def test_the_units_call_a_command_that_there_is(unit: str) -> None:
    text = (DEPLOY / unit).read_text()
    [command] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    _understood(shlex.split(command))
    assert "KillMode=process" in text or "server" in unit, "systemd would kill the trainings"


def test_the_compose_file_starts_a_server_and_a_worker(compose: dict[str, Any]) -> None:
    """tests/release has what they are built from."""
    for name in ("server", "worker"):
        _understood(["tarmac", *compose["services"][name]["command"]])
    volumes = {
        volume.partition(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
        if not volume.startswith("$")
    }
    assert volumes == set(compose["volumes"])
    open_to_others = {name for name, service in compose["services"].items() if "ports" in service}
    assert open_to_others == {"proxy"}


def test_no_secret_stands_in_a_file(compose: dict[str, Any]) -> None:
    for file in FILES:
        for user_and_password in re.findall(r"(?:asyncpg://|AUTH_STRING[:=] ?)([^\s@'`]+)", file.read_text()):
            assert re.fullmatch(r"(prefect|USER):(\$.*|PASSWORD)|\$\{SECRET.*", user_and_password), (
                user_and_password
            )


def test_a_server_needs_neither_torch_nor_wandb() -> None:
    blocked = (
        "torch",
        "torchvision",
        "wandb",
        "sklearn",
        "submitit",
        "open_clip",
        "webdataset",
        "nibabel",
        "blosc2",
    )
    assert "prefect" in imported("import flows.operate.up, flows.operate.serve", blocked=blocked)


def test_the_template_of_a_kubernetes_pool_has_what_a_flow_run_needs() -> None:
    """tests/system shows that a worker of that pool takes it."""
    template = json.loads((DEPLOY / "kubernetes-job.json").read_text())
    WorkPoolCreate(
        name="tarmac", type="kubernetes", base_job_template=template
    )  # each {{ variable }} is known
    known = template["variables"]["properties"]
    assert set(JOB_VARIABLES) <= set(known), "what tarmac deploy sets has no effect"
    pod = template["job_configuration"]["job_manifest"]["spec"]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {"project": "{{ folder }}", "shared-memory": "/dev/shm"}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
