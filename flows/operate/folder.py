"""A project's folder as a Prefect server knows it: its names there, and the step by which a run enters it.

Projects share a server, and machines may share a project. All workers belong to one pool, in which each
folder has a work queue of its own: what a folder has deployed is run only by workers that were started in it,
on any machine.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import sys
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.logging.loggers import flow_run_logger
from prefect.states import Failed

MACHINE_ID = Path("/etc/machine-id")
"""The file is systemd's; a container may have none."""
ENTER, NAMES = "tarmac.enter", "tarmac.names"
"""The steps of deployments, by which names Prefect imports them."""


def project_name() -> str:
    """Return the folder's name, without characters that Prefect refuses or that addresses have to escape."""
    return re.sub(r"[^\w.-]+", "-", Path.cwd().name).strip("-") or "project"


def queue_name() -> str:
    """Return the folder's work queue, such as `project-3f9a1c`: the same on every machine, and unique."""
    return f"{project_name()}-{_mark(b'')}"


def worker_name(machine_id: Path = MACHINE_ID) -> str:
    """Return the name of this folder's worker on this machine, the same after each start: host, folder, and a
    hash of the machine's id and the folder's whole path, without characters that Prefect refuses."""
    try:
        machine = machine_id.read_bytes().strip()
    except OSError:
        machine = b""
    return f"{socket.gethostname()} {Path.cwd().name} {_mark(machine)}".replace("/", "-").replace("%", "-")


def _mark(machine: bytes) -> str:
    return hashlib.sha256(machine + b"\n" + os.fsencode(Path.cwd())).hexdigest()[:6]


def names() -> dict[str, str]:
    """Return the names that a prefect.yaml refers to: a build step, so that the file is the same in every
    folder."""
    return {"project": project_name(), "queue": queue_name(), "path": str(Path.cwd())}


def enter(directory: str) -> dict[str, str]:
    """The pull step of a flow run: make the project's folder the working directory.

    If the folder is missing, the flow run ends as Failed, with a line that names folder and machine, and so
    does this process. With an error it would crash, and start again to no avail.
    """
    try:
        os.chdir(directory)
    except OSError as error:
        message = (
            f"start failed: the folder {directory} is not on {socket.gethostname()} ({error.strerror}); "
            "bring it back and press Retry, or where the project is now: tarmac deploy --take-over, tarmac up"
        )
        with get_client(sync_client=True) as client:
            flow_run = client.read_flow_run(UUID(os.environ["PREFECT__FLOW_RUN_ID"]))
            flow_run_logger(flow_run).error("%s", message)
            client.set_flow_run_state(flow_run.id, Failed(message=message))
        sys.exit()
    return {"directory": os.getcwd()}
