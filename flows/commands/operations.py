"""The commands that operate Tarmac on a Prefect server: `up` and `deploy`."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from flows.commands.arguments import AsJson
from flows.commands.output import print_result, say
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.units import size

MARKS = {"new": "+", "changed": "~", "removed": "−", "unchanged": " "}


def up(
    *,
    port: Annotated[
        int | None,
        Parameter(help="The server's port (default: 4200 or PREFECT_API_URL's); the pages take the next."),
    ] = None,
    host: Annotated[
        str | None, Parameter(help="The address to listen on (default: 127.0.0.1, for this machine alone).")
    ] = None,
    only: Annotated[
        Literal["server", "worker"] | None,
        Parameter(help="Start only the server, or all but the server (and wait for it)."),
    ] = None,
    backup: Annotated[
        Path | None,
        Parameter(help="Only copy the server's SQLite database to this file, also while it is in use."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run a Prefect server and a worker for this folder until Ctrl-C.

    It registers configs/*.yaml as `tarmac deploy` does, and serves the reports
    of the runs. If a server answers at the address already, it is used. A
    process that dies is started again; Ctrl-C ends all but the trainings.

    For example:
      tarmac up
      tarmac up --port 4300
      tarmac up --backup prefect-2027-03-01.db
    """
    if backup is not None and (port, host, only) != (None, None, None):
        raise UsageError("--backup: starts nothing; leave out --port, --host and --only")
    from flows.operate import environment

    environment.prepare(quiet=False)  # before anything imports Prefect
    if backup is not None:
        return _back_up(backup, as_json)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # a home that cannot be written
        from flows.operate.up import running

    with running(host, port, only) as state:
        if as_json:
            processes = {service.name: service.process.pid for service in state.services}
            facts = {"server": state.server, "pages": state.pages, "deployments": state.deployments}
            print_result(**facts, processes=processes)
        else:
            say(f"✓ server   {state.server}{'' if state.is_ours else ', which was running'}")
            if state.pages is not None:
                say(f"✓ pages    {state.pages}")
                say(f"✓ deployed {', '.join(state.deployments)}")
                say(f"✓ worker   runs the flows of {Path.cwd()}")
            say(f"Open {state.server}/deployments   Ctrl-C ends what runs here; trainings go on")
        sys.stdout.flush()
        state.watch()
    return 0


def _back_up(path: Path, as_json: bool) -> int:
    from flows.operate.server import back_up

    copied = back_up(path)
    return print_result(backup=str(path), bytes=copied) if as_json else say(f"✓ {path}: {size(copied)}")


def deploy(
    *configs: Annotated[Path, Parameter(help="The configs to register (default: all of configs/*.yaml).")],
    take_over: Annotated[bool, Parameter(help="Take over deployments of another folder.")] = False,
    dry_run: Annotated[
        bool, Parameter(help="Show what would change, field by field; change nothing.")
    ] = False,
    notify: Annotated[
        str | None,
        Parameter(help="Send messages to this notification block of the server.", metavar="TYPE/NAME"),
    ] = None,
    notify_on: Annotated[
        str | None,
        Parameter(
            help="The messages: failed, stalled, stale, succeeded, fell-short (default: the first three).",
            metavar="KIND,KIND",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        Parameter(help="Write the deployments to this file, for prefect deploy; register nothing."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Register a project's flows and schedules with a Prefect server.

    A config gives build/NAME and, if it trains, pipeline/NAME; the project
    gives verify/PROJECT, evaluate/PROJECT and doctor/PROJECT, by the name of its
    folder, and automations that look after the runs. Only workers of this folder
    run them. Tags, limits and pauses that are set on a page stay; deployments
    whose config is gone are removed. PREFECT_API_URL names the server.

    For example:
      tarmac deploy
      tarmac deploy configs/digits-clip.yaml --dry-run
      tarmac deploy --notify slack-webhook/team --notify-on failed,stalled,succeeded
    """
    if write is not None and (take_over or dry_run or notify is not None or notify_on is not None):
        raise UsageError("--write: registers nothing; leave out --take-over, --dry-run and --notify")
    from flows.operate import environment

    environment.prepare(quiet=True)  # before anything imports Prefect
    if write is not None:
        return _write_file(write, configs, as_json)
    from flows.operate.deployments import deploy as register

    done = register(configs, take_over=take_over, dry_run=dry_run, notify=notify, notify_on=notify_on)
    if as_json:
        return print_result(
            deployments=[asdict(one) for one in done.deployments],
            automations=[asdict(one) for one in done.automations],
            left_out=dict(done.left_out),
            dry_run=dry_run,
        )
    for one in done.deployments:
        when = one.schedule or "on demand"
        say(f"{MARKS[one.state]} {one.name:<28} {one.state:<9} {when:<16} {one.url}".rstrip())
        for name, (old, new) in one.fields.items() if dry_run else ():
            say(f"    {name}: {json.dumps(old, ensure_ascii=False)} -> {json.dumps(new, ensure_ascii=False)}")
    for act in done.automations:
        say(f"{MARKS[act.state]} {act.name:<28} {act.state:<9} automation")
    for name, why in done.left_out.items():
        screen.warn(why if name in why else f"{name} {why}")
    return say("nothing was changed: this was a dry run") if dry_run else 0


def _write_file(path: Path, configs: Sequence[Path], as_json: bool) -> int:
    from flows.operate.offers import of_project, prefect_file

    project = of_project(configs)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(prefect_file(project.offers), encoding="utf-8")
    if as_json:
        return print_result(file=str(path), left_out=project.left_out)
    for why in project.left_out.values():
        screen.warn(why)
    return say(
        f"✓ {path}: {len(project.offers)} deployments; prefect --no-prompt deploy --all --prefect-file {path}"
    )
