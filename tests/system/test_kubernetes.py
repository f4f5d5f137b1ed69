"""The template of deploy/ makes a job that Prefect's own worker for Kubernetes would send to a cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from flows.operate.offers import JOB_VARIABLES
from tests.services import Api
from tests.system.foreign_env import PINS, ROOT, foreign_env

pytestmark = pytest.mark.system


def test_a_worker_makes_a_whole_job_of_it(api: Api, env: dict[str, str]) -> None:
    given = {"image": "lab/tarmac:1", "folder": "/lab/project", "claim": "lab", "gpus": 2, **JOB_VARIABLES}
    command = [foreign_env("kubernetes") / "python", PINS / "kubernetes_job.py"]
    done = subprocess.run(
        [*command, Path(ROOT / "deploy/kubernetes-job.json"), json.dumps(given)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    pod = json.loads(done.stdout.splitlines()[-1])["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "lab/tarmac:1"
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": 2}
    assert container["env"]["PYTHONSAFEPATH"] == "1"
    assert {"name": "project", "persistentVolumeClaim": {"claimName": "lab"}} in pod["volumes"]
    assert pod["restartPolicy"] == "Never", "Prefect starts a run again, not the cluster"
