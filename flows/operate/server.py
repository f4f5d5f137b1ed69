"""The Prefect server of a command: the one that is named, checked before any work, or one that Tarmac starts.

There is one way to start one, for `tarmac up` and for a run without a named server. A refusal of the server,
or the reason why it does not come up, is reported in one line.
"""

from __future__ import annotations

import atexit
import errno
import os
import re
import socket
import sqlite3
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from flows.operate import service
from tasks.core.errors import TarmacError, UsageError

POLL_S = 0.1
EXCEPTION = re.compile(r"(\w+\.)*\w*(Error|Exception): ")
"""Matches the last line of a traceback."""
_lasting: list[ExitStack] = []
"""The temporary server of this process and the settings that name it, until the process ends."""


def address() -> str | None:
    """Return the server's address, by the environment or a profile of Prefect's; None if none is named."""
    return get_current_settings().api.url


def how_to_forget() -> str:
    """Return the command that removes the address from where it is named."""
    named_here = "PREFECT_API_URL" in os.environ
    return "unset PREFECT_API_URL" if named_here else "prefect config unset PREFECT_API_URL"


@contextmanager
def connected(advice: str) -> Iterator[SyncPrefectClient]:
    """Yield a client of the named server, which answers and admits it. UsageError if it does not, with
    `advice` if there is no server."""
    with server_errors_explained(), get_client(sync_client=True) as client:
        dead = client.api_healthcheck()
        if dead is not None:
            why = " ".join(str(dead).split())
            raise UsageError(f"{_named()}: no Prefect server answers there ({why}); {advice}")
        client.read_flows(limit=1)  # its health alone would need no password
        yield client


@contextmanager
def server_errors_explained() -> Iterator[None]:
    """Raise an error of one line if the server refuses a request of the block, or no longer answers."""
    try:
        yield
    except PrefectHTTPStatusError as error:
        code, reason = error.response.status_code, " ".join(error.response.text.split())[:300]
        fix = "; set PREFECT_API_AUTH_STRING to the server's user:password" if code == 401 else ""
        raise UsageError(f"{_named()}: the server refuses ({code}): {reason}{fix}") from None
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        raise TarmacError(
            f"{_named()}: the server no longer answers ({why}); what is done stays, and the same command "
            "goes on with it"
        ) from None


def _named() -> str:
    return "Prefect's temporary server" if _lasting else f"PREFECT_API_URL={address()}"


@contextmanager
def started_temporarily(begun: service.TemporaryServer) -> Iterator[None]:
    """A server for this process alone, which every client in it finds and which ends with the process.

    It comes up while the block runs, and answers after it. UsageError if Prefect's folder cannot be written,
    TarmacError if the server does not come up.
    """
    lasting = ExitStack()
    atexit.register(lasting.close)
    lasting.callback(begun.end)
    _require_home()
    yield
    try:
        wait_until_up(begun.process, begun.url)
    except TarmacError as error:
        why = last_line(begun.printed().splitlines())
        fix = "try again, or start one with `tarmac up` and name it in PREFECT_API_URL"
        raise TarmacError(f"Prefect's temporary server {error}{why}; {fix}") from None
    os.environ["PREFECT_API_URL"] = begun.url  # for threads, which do not inherit their starter's settings
    lasting.enter_context(temporary_settings({PREFECT_API_URL: begun.url}))
    _lasting.append(lasting)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `port` of this machine's address `host`; any free port for 0.

    UsageError if the port is taken, or the address or the port cannot be used.
    """
    try:
        return listening_at(host, port)
    except OSError as error:
        why = f"--host: {host} is no address of this machine ({error.strerror}); use 127.0.0.1 or 0.0.0.0"
        if error.errno == errno.EADDRINUSE:
            fix = "choose another port, or end that program"
            why = f"--port: another program listens on {host}:{port}; {fix}"
        elif error.errno == errno.EACCES:
            why = f"--port: {port} is for root only; choose one between 1024 and 65535"
        raise UsageError(why) from None


def listening_at(host: str, port: int) -> socket.socket:
    """Return the same socket; OSError if there is none."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((str(place[0]), port), family=family)


def start_server(listener: socket.socket, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Start a Prefect server on a listening socket; UsageError if Prefect's folder cannot be written."""
    _require_home()
    return service.start_server(listener, output)


def _require_home() -> None:
    """Without a folder for its database the server would try for minutes."""
    home = get_current_settings().home
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=home).close()
    except OSError as error:
        why = f"{home} cannot be written ({error.strerror})"
        raise UsageError(f"PREFECT_HOME: {why}; set it to a folder that can") from None


def back_up(path: Path) -> int:
    """Copy the server's SQLite database into a file, also while the server works; returns the copy's bytes.

    UsageError for another kind of database, where there is none yet, and for a place that cannot be written.
    """
    from sqlalchemy.engine import make_url  # only the server itself needs it otherwise

    url = get_current_settings().server.database.connection_url
    address = "" if url is None else url.get_secret_value()
    source = make_url(address).database if address.startswith("sqlite") else None
    if source is None:
        raise UsageError(
            "--backup: the database is no SQLite file; for PostgreSQL: pg_dump, see deploy/README.md"
        )
    if not os.path.exists(source):
        raise UsageError(f"--backup: there is no database {source}; PREFECT_HOME names the server's folder")
    part = path.with_name(f"{path.name}.part")
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))  # it holds logs and secrets
        with closing(sqlite3.connect(source)) as there, closing(sqlite3.connect(part)) as copy:
            there.backup(copy)
        part.replace(path)
        return path.stat().st_size
    except (OSError, sqlite3.Error) as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"--backup: {path} cannot be written ({error})") from None


def wait_until_up(process: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the API at `url` answers; TarmacError when the process ends or takes too long."""
    patience_s = get_current_settings().server.ephemeral.startup_timeout_seconds
    deadline = time.monotonic() + patience_s
    while not is_up(url, timeout_s=1.0):
        if process.poll() is not None:
            raise TarmacError(f"ended while it started (exit code {process.returncode})")
        if time.monotonic() > deadline:
            raise TarmacError(f"did not come up within {patience_s:.0f} s")
        time.sleep(POLL_S)


def last_line(output: Sequence[str]) -> str:
    """Return the last exception in a failed process's output, or else its last line, behind a colon, such as
    `: ConnectionRefusedError: …`."""
    lines = [line.strip() for line in output if line.strip()]
    errors = [line for line in lines if EXCEPTION.match(line)]
    return f": {(errors or lines)[-1]}" if lines else ""


def is_up(url: str, timeout_s: float = 3.0) -> bool:
    """Whether a Prefect server answers at the API's address."""
    api = get_current_settings().api
    trusted: ssl.SSLContext | bool = False
    if url.startswith("https:") and not api.tls_insecure_skip_verify:  # as Prefect's own clients trust
        trusted = ssl.create_default_context(cafile=api.ssl_cert_file)
    try:
        answer = httpx.get(f"{url}/health", timeout=timeout_s, verify=trusted)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.text == "true"
