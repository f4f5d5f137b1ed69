"""Starts a flow from the terminal: Prefect's settings, its server, and what Ctrl-C means."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flows.operate import environment, service
from tasks.core import screen
from tasks.core.errors import TarmacError
from tasks.runs.folder import RunFolder, list_runs
from tasks.runs.ledger import Key

if TYPE_CHECKING:  # imports Prefect, whose environment must stand before
    from flows.stages import Stages


def flow(path: str, runs: Path, **parameters: Any) -> Stages:
    """Run the flow at `path`, such as `flows.build:build_flow`; returns its stages' results. If Ctrl-C ends
    it, the trainings in `runs` that go on are named."""
    module, _, function = path.partition(":")
    call = getattr(_prepare(module), function)
    return _watched(lambda: call(**parameters), runs)


def evaluation(run: RunFolder, again: Sequence[Key]) -> Stages:
    """Run the evaluate flow on a run; it repeats the evaluations `again`, even those with a result."""
    from tasks.supervision.evaluating.evaluation_jobs import request

    call = _prepare("flows.evaluate").evaluate_flow
    for step, task in again:
        request(run, step, task)
    return _watched(lambda: call(str(run.path), run.path.parent), run.path.parent)


def _prepare(flow_module: str) -> ModuleType:
    """Set Prefect's environment, make sure that a server answers, and import the flow's module.

    The server is the named one, or a temporary one, which comes up while Prefect and the module are imported.
    """
    environment.prepare(quiet=True)
    begun = None if os.environ.get("PREFECT_API_URL") else service.TemporaryServer()
    screen.passing("starting Prefect", elsewhere=begun is not None)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a home that cannot be written
        server = importlib.import_module("flows.operate.server")
    if server.address() is None and begun is not None:
        with server.started_temporarily(begun):
            return importlib.import_module(flow_module)
    if begun is not None:
        begun.end()
    advice = f"start it with `tarmac up`, or `{server.how_to_forget()}` to do without one"
    with server.connected(advice):
        return importlib.import_module(flow_module)


def _watched(call: Callable[[], Any], runs: Path) -> Stages:
    from prefect.exceptions import Abort, Pause

    from flows.operate.server import server_errors_explained

    try:
        with server_errors_explained():
            result: Stages = call()
    except (Abort, Pause) as error:
        raise TarmacError(str(error)) from None
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _report_what_goes_on(runs)
        raise
    return result


def _report_what_goes_on(runs: Path) -> None:
    """Name each run that goes on, because Ctrl-C has ended only the watching."""
    from tasks.runs import record
    from tasks.runs.jobs import agent_is_alive

    for run in list_runs(runs):
        with contextlib.suppress(TarmacError):  # `tarmac status` reports a damaged one
            if agent_is_alive(run):
                job = record.load_record(run).job or {}
                what = "Following" if run.followed.exists() else "Training"
                screen.erase()
                sys.stderr.write(
                    f"\n{what} goes on as job {job.get('id', '?')} ({run.name}). "
                    f"Watch: tarmac status   Stop: tarmac cancel {run.handle}"
                )
