"""`tarmac up` keeps a Prefect server running, the pages of this folder, its deployments, and a worker.

Server and worker are processes of their own; one that ends is started again, after pauses that grow. They end
with this process, however it ends, and so do the flow runs that the worker has started. A training is not
among their children: it goes on, and the next run of the same values adopts it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import psutil
from prefect.settings import get_current_settings

from flows.operate import folder, pages, recovery, server
from flows.operate.offers import pool
from flows.operate.service import END_S, LOOPBACK, Service, end, start_service
from flows.staleness import stale_datasets
from tasks import events, guard
from tasks.core import child, screen
from tasks.core.errors import TarmacError, UsageError
from tasks.reporting.links import PAGES_URL

Part = Literal["server", "worker"]

PORT = 4200
LAST_PORT = 65535
PAGE_PORTS = 10
"""The number of ports behind the server's that are tried for the pages of folders."""
EVERYWHERE = ("0.0.0.0", "::")
LOOPBACKS = ("127.0.0.1", "::1")
WORKER_END_S = 30.0
"""A worker may take this long to end its flow runs and to report that to the server."""
POLL_S = 0.5
QUERY_S = "2"
"""How often a worker asks for flow runs; with Prefect's 10 s a click would wait for it longest."""
MISSED_S = 60.0
"""The interval in which crashed flow runs of the worker are looked for."""
ANSWER_S = 10.0
"""A server may take this long to answer: it may just be starting again."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MARK = "TARMAC_UP"
"""A variable in the environment of all processes of a worker, by which its flow runs are recognised."""


@dataclass
class Running:
    """What `running` has started. `pages` is the address of this folder's pages; None if only a server
    runs."""

    server: str
    is_ours: bool
    pages: str | None = None
    deployments: list[str] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    _warned: set[str] = field(default_factory=set)
    _stale: set[str] = field(default_factory=set)

    def warn_of_unwatched(self) -> None:
        """Warn once of each flow run that has ended while its training goes on."""
        for flow_run, line in recovery.unwatched(folder.worker_name()).items():
            if flow_run not in self._warned:
                self._warned.add(flow_run)
                screen.warn(line)

    def report_stale(self) -> None:
        """Report once of each dataset that it has become older than its config wants, here and as an event
        for the server's automations. It works as long as this does, whatever the schedule's runs do."""
        stale = {finding.where["config"]: finding for finding in stale_datasets()}
        for name in stale.keys() - self._stale:
            finding = stale[name]
            screen.warn(f"{finding.line.removeprefix('! ')}; {finding.command}")
            events.emit_stale(name, finding.where["dataset"], str(finding.evidence["what"]))
        self._stale = set(stale)

    def watch(self) -> None:
        """Start again what ends, until Ctrl-C or SIGTERM."""
        looked = time.monotonic()
        try:
            while True:
                for service in self.services:
                    service.look()
                if self.pages is not None and time.monotonic() - looked > MISSED_S:
                    looked = time.monotonic()
                    for name in recovery.take_up_missed(folder.worker_name()):
                        screen.warn(f"{name} crashed while the server was away; it starts again")
                    self.warn_of_unwatched()
                    self.report_stale()
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            for sign in ENDING:
                signal.signal(sign, signal.SIG_IGN)  # the end takes seconds, and comes once


@contextmanager
def running(host: str | None, port: int | None, only: Part | None) -> Iterator[Running]:
    """Start what this folder needs, or only a part, on a server that answers already or on a new one.

    All that was started ends with the block. UsageError names a wrong option or setting, TarmacError the
    reason why something does not come up.
    """
    place = _ServerLocation.of(host, port, only)
    if only != "server" and not any(Path("configs").glob("*.yaml")):
        raise UsageError(
            f"configs: {Path.cwd()} has no configs/*.yaml that could be deployed; call this in a project's "
            "folder, or begin one: tarmac init PATH"
        )
    with ExitStack() as stack:
        for sign in ENDING:  # SIGTERM and a closed terminal end this as Ctrl-C does
            stack.callback(signal.signal, sign, signal.signal(sign, _interrupt))
        answers = server.is_up(place.api, ANSWER_S) or (only == "worker" and _waited_for(place))
        if answers and only == "server":
            raise UsageError(f"{place.shown}: a Prefect server answers there already")
        state = Running(place.shown, is_ours=not answers)
        if not answers:
            state.services.append(_start_server(place, stack))
        if only != "server":
            os.environ["PREFECT_API_URL"] = place.api  # for all that is started from here on
            state.pages = _serve_pages(place, stack)
            state.deployments = _deploy()
            with server.server_errors_explained():
                for name in recovery.take_up_lost(folder.worker_name()):
                    screen.warn(f"{name} was lost when its worker ended; it starts again")
            state.warn_of_unwatched()
            state.report_stale()
            state.services.append(_start_worker(place, state.pages, stack))
        yield state


@dataclass(frozen=True)
class _ServerLocation:
    """The address of the server, present or future; `is_setting` if PREFECT_API_URL gives it, not an option.
    The pages take the first free port of `pages_host` from `pages_port` on."""

    host: str
    port: int
    api: str
    is_setting: bool
    pages_host: str
    pages_port: int

    @classmethod
    def of(cls, host: str | None, port: int | None, only: Part | None) -> _ServerLocation:
        """Return it by the options, else by PREFECT_API_URL, else with the usual port of this machine. With a
        named server that is not to be started, `host` is that of the pages."""
        url = server.address()
        if url is not None and port is None and (host is None or only == "worker"):
            parts = urlsplit(url)
            there = parts.hostname or ""
            at = parts.port or (443 if parts.scheme == "https" else 80)
            is_plain = parts.scheme == "http" and _is_here(there)
            pages_host = host or (there if is_plain else LOOPBACK)
            return cls(there, at, url.rstrip("/"), True, pages_host, (at if is_plain else PORT) + 1)
        host, port = host or LOOPBACK, PORT if port is None else port
        if not 0 < port < LAST_PORT:
            raise UsageError(
                f"--port: {port} is no port with one after it; choose one between 1024 and 65534"
            )
        near = LOOPBACK if host in EVERYWHERE else host
        return cls(host, port, f"http://{_in_url(near)}:{port}/api", False, host, port + 1)

    @property
    def named(self) -> str:
        """The address in the words of the user's setting or options."""
        return f"PREFECT_API_URL={self.api}" if self.is_setting else f"{self.host}:{self.port}"

    @property
    def shown(self) -> str:
        """The address for a browser, also for one on another machine where it can come from there."""
        if self.host in EVERYWHERE:
            return f"http://{socket.gethostname()}:{self.port}"
        return self.api.removesuffix("/api")


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _waited_for(place: _ServerLocation) -> bool:
    """Wait until a server of another service or machine answers; UsageError if none does."""
    patience_s = get_current_settings().server.ephemeral.startup_timeout_seconds
    screen.warn(f"{place.named}: no Prefect server answers there yet; waiting for it, {patience_s} s at most")
    deadline = time.monotonic() + patience_s
    while not server.is_up(place.api):
        if time.monotonic() > deadline:
            raise UsageError(
                f"{place.named}: no Prefect server answers there; start it: tarmac up --only server"
            )
        time.sleep(POLL_S)
    return True


def _start_server(place: _ServerLocation, stack: ExitStack) -> Service:
    parts = urlsplit(place.api)
    if place.is_setting and (parts.scheme != "http" or parts.path != "/api" or not _is_here(place.host)):
        raise UsageError(
            f"{place.named}: no Prefect server answers there, and none can be started from here; start it on "
            f"that machine, or for one on this machine: {server.how_to_forget()}"
        )
    listener = stack.enter_context(server.listening(place.host, place.port))
    if get_current_settings().server.api.auth_string is None:
        _warn_if_open(listener, "start runs as you", "PREFECT_SERVER_API_AUTH_STRING")
    service = Service("server", lambda: server.start_server(listener, subprocess.PIPE), is_shown=False)
    stack.callback(lambda: end(service.process))
    try:
        server.wait_until_up(service.process, place.api)
    except TarmacError as error:
        raise TarmacError(f"the Prefect server {error}{server.last_line(service.last_lines)}") from None
    service.is_shown = True
    return service


def _is_here(host: str) -> bool:
    """Whether a name or an address is one of this machine's."""
    with suppress(OSError), server.listening_at(host, 0):
        return True
    return False


def _warn_if_open(listener: socket.socket, can: str, setting: str) -> None:
    host = listener.getsockname()[0]
    if host not in LOOPBACKS:
        screen.warn(
            f"--host {host}: whoever reaches this machine can {can}; for a password: {setting}=USER:PASSWORD"
        )


def _serve_pages(place: _ServerLocation, stack: ExitStack) -> str:
    """Serve this folder's pages; returns their address for a browser, or the value of TARMAC_PAGES_URL, such
    as a proxy's address."""
    listener = stack.enter_context(_next_free(place.pages_host, place.pages_port))
    secret = get_current_settings().api.auth_string
    if secret is None:
        _warn_if_open(listener, "read this folder's pages", "PREFECT_API_AUTH_STRING")
    known = None if secret is None else secret.get_secret_value()
    stack.enter_context(pages.serving(Path.cwd(), listener, known))
    name = socket.gethostname() if place.pages_host in EVERYWHERE else place.pages_host
    return os.environ.get(PAGES_URL) or f"http://{_in_url(name)}:{listener.getsockname()[1]}"


def _next_free(host: str, first: int) -> socket.socket:
    last = min(first + PAGE_PORTS, LAST_PORT) - 1
    for port in range(first, last):
        with suppress(OSError):
            return server.listening_at(host, port)
    return server.listening(host, last)  # which explains what is wrong


def _deploy() -> list[str]:
    """Register this folder's deployments and automations; returns the deployments' names.

    It runs in a process of its own, because what the flows import is not needed afterwards."""
    done = child.call("flows.operate.deployments:deploy", {})
    for name, why in done["left_out"].items():
        screen.warn(why if name in why else f"{name} {why}")
    return [one["name"] for one in done["deployments"] if one["state"] != "removed"]


def _start_worker(place: _ServerLocation, pages_at: str, stack: ExitStack) -> Service:
    mark = uuid.uuid4().hex
    settings = {
        "PREFECT_WORKER_QUERY_SECONDS": QUERY_S,
        **get_current_settings().to_environment_variables(exclude_unset=True),
        "PREFECT_API_URL": place.api,
        PAGES_URL: pages_at,
        "PYTHONUNBUFFERED": "1",
        MARK: mark,
    }
    command = [sys.executable, "-m", "prefect", "worker", "start", "--type", "process"]
    command += ["--pool", pool(), "--work-queue", folder.queue_name(), "--name", folder.worker_name()]
    service = Service("worker", lambda: start_service(command, settings, subprocess.PIPE))
    stack.callback(recovery.mark_lost, folder.worker_name())
    stack.callback(_end_flow_runs, mark)
    stack.callback(lambda: end(service.process, WORKER_END_S))
    return service


def _end_flow_runs(mark: str) -> None:
    """End the flow runs that a killed worker has left, and their guards, but not trainings, which have its
    mark, too."""
    left = [process for process in psutil.process_iter() if _is_flow_run(process, mark)]
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                stop(process)
        _, left = psutil.wait_procs(left, timeout=END_S)


def _is_flow_run(process: psutil.Process, mark: str) -> bool:
    try:
        is_ours = recovery.is_flow_run(process) or process.cmdline()[1:3] == ["-m", guard.__name__]
        return is_ours and str(process.environ().get(MARK)) == mark
    except psutil.Error:
        return False
