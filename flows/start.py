"""Starts a flow from the terminal: Prefect's settings, its server, and what Ctrl-C means."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows import environment
from tasks.core import screen
from tasks.core.errors import TarmacError
from tasks.core.schema import Config
from tasks.runs.folder import RunFolder, list_runs
from tasks.runs.ledger import Key

OPTIONS = ("fresh", "rehash", "accept_loss", "shard")
"""Flags of the command line that the flow takes under the same name."""


def flow(name: str, arguments: Namespace, settings: Config) -> list[dict[str, Any]]:
    """Run the flow `name` on the config that the command line names; returns its stages' results."""
    _prepare()
    parameters = importlib.import_module("flows.parameters")
    functions = {
        "pipeline": "flows.pipeline:pipeline",
        "build": "flows.build:build_flow",
        "train": "flows.train:train_flow",
    }
    module, _, function = functions[name].partition(":")
    call = getattr(importlib.import_module(module), function)
    given: dict[str, Any] = {
        "config": Path(arguments.config),
        "overrides": parameters.Overrides(set=arguments.set),
    }
    given |= {name: getattr(arguments, name) for name in OPTIONS if name in arguments}
    if "no_wait" in arguments:
        given["wait"] = not arguments.no_wait
    return _watched(lambda: call(**given), settings.runs)


def evaluation(run: RunFolder, again: Sequence[Key]) -> list[dict[str, Any]]:
    """Run the evaluate flow on a run's folder, doing the evaluations `again` even if they have a result."""
    from tasks.supervision.evaluation_jobs import request

    _prepare()
    for step, task in again:
        request(run, step, task)
    call = importlib.import_module("flows.evaluate").evaluate_flow
    return _watched(lambda: call(run.path), run.path.parent)


def _prepare() -> None:
    """Set Prefect's environment, then make sure that a server answers: the one it is told of, or a temporary
    one."""
    screen.passing("starting Prefect")
    environment.prepare(quiet=True)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a home that cannot be written
        server = importlib.import_module("flows.server")
    if server.address() is None:
        importlib.import_module("flows.temporary_server").start()
        return
    advice = f"start it with `prefect server start`, or `{server.how_to_forget()}` to do without one"
    with server.asked(advice):
        pass


def _watched(call: Callable[[], Any], runs: Path) -> list[dict[str, Any]]:
    told_of_refusals = importlib.import_module("flows.server").told_of_refusals
    try:
        with told_of_refusals():
            result: list[dict[str, Any]] = call()
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _say_what_goes_on(runs)
        raise
    return result


def _say_what_goes_on(runs: Path) -> None:
    """Ctrl-C ends the watching only: name each training that goes on without it."""
    from tasks.runs import record
    from tasks.supervision.status import agent_is_alive

    for run in list_runs(runs):
        with contextlib.suppress(TarmacError):  # of a damaged one status tells
            if agent_is_alive(run):
                job = record.load(run).job or {}
                sys.stderr.write(
                    f"\nTraining goes on as job {job.get('id', '?')} ({run.name}). "
                    f"Watch: tarmac status   Stop: tarmac cancel {run.handle}"
                )
