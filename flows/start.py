"""Starts a flow from the terminal: Prefect's settings, its server, and what Ctrl-C means."""

from __future__ import annotations

import importlib
import json
import sys
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows import environment
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.runs.folder import RunFolder, list_runs

SERVER_TIMEOUT_S = 10.0


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
    if "fresh" in arguments:
        given["fresh"] = arguments.fresh
    return _watched(lambda: call(**given), settings.runs)


def evaluation(run: RunFolder) -> list[dict[str, Any]]:
    """Run the evaluate flow on a run's folder."""
    _prepare()
    call = importlib.import_module("flows.evaluate").evaluate_flow
    return _watched(lambda: call(run.path), run.path.parent)


def _prepare() -> None:
    """Set Prefect's environment, then make sure that the server it would use answers."""
    environment.prepare(quiet=True)
    settings = importlib.import_module("prefect.settings")
    url = settings.get_current_settings().api.url
    if url is None:
        return
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=SERVER_TIMEOUT_S) as reply:
            json.load(reply)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise UsageError(
            f"PREFECT_API_URL={url}: no Prefect server answers there ({error}); start it with "
            "`prefect server start`, or unset PREFECT_API_URL to do without one"
        ) from None


def _watched(call: Callable[[], Any], runs: Path) -> list[dict[str, Any]]:
    try:
        result: list[dict[str, Any]] = call()
    except KeyboardInterrupt:
        _say_what_goes_on(runs)
        raise
    return result


def _say_what_goes_on(runs: Path) -> None:
    """Ctrl-C ends the watching only: name each training that goes on without it."""
    from tasks.runs import record
    from tasks.supervision.status import agent_is_alive

    for run in list_runs(runs):
        if agent_is_alive(run):
            job = record.load(run).job or {}
            sys.stderr.write(
                f"\nTraining goes on as job {job.get('id', '?')} ({run.name}). "
                f"Watch: tarmac status   Stop: tarmac cancel {run.id}"
            )
