"""Reports a flow run whose process was killed, from a small process beside it.

A killed process reports nothing, and a worker that is stopped kills its flow runs without a report: the
server would show them as Running until their silence is noticed. The guard holds one end of a pipe whose
other end only the flow holds, so it notices the flow's end at once, however it came. It imports Prefect only
then, and takes 12 MB while it waits. What ends the whole machine ends the guard, too; then the next start of
the worker finds the run (flows.operate.recovery), or the server misses its pulse (flows.operate.automations).
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the guard itself does without, as long as it can
    from prefect.client.schemas.objects import FlowRun, State

REPORTED_S = 5.0
"""A worker has this long to report the end of its flow run, with the exit code that only it knows."""
LOOK_S = 5.0
PATIENCE_S = 900.0
"""A server that is away is tried for this long."""


def start_guard(flow_run: FlowRun) -> None:
    """Guard this process, which runs the flow run, until it ends by itself."""
    from prefect.settings import get_current_settings

    from tasks.core.process import child_environment

    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    guard = subprocess.Popen(
        [sys.executable, "-m", __name__, str(flow_run.id), str(flow_run.run_count)],
        env={**child_environment(), **settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(guard.terminate)


def main(flow_run_id: str, run_count: int) -> None:
    """Wait for the end of the flow, and report it if nobody else does."""
    sys.stdin.buffer.read()
    time.sleep(REPORTED_S)
    report(flow_run_id, run_count)


def report(flow_run_id: str, run_count: int) -> None:
    """Mark the flow run as crashed if it is still Running in its `run_count`th start."""
    from uuid import UUID

    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound, PrefectException
    from prefect.states import Crashed

    deadline = time.monotonic() + PATIENCE_S
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            try:
                found = client.read_flow_run(UUID(flow_run_id))
                if found.state is not None and found.state.is_running() and found.run_count == run_count:
                    ended: State = Crashed(message="Its process was killed; what was done is kept.")
                    client.set_flow_run_state(found.id, ended)
                return
            except ObjectNotFound:
                return
            except (httpx.HTTPError, PrefectException):
                time.sleep(LOOK_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
