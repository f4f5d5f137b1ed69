"""The process of a Prefect server that Tarmac starts: Prefect's app on a socket that its starter has bound.

Its starter knows the port before the server is up, and nobody else can take it in between.

On SQLite, transactions that write wait for one another from their start. Prefect begins them as readers; one
that wants to write after another has done so fails with "database is locked" at once, and so loses the events
by which the automations would notice that a run is dead.

Servers of one Prefect folder start one after another: each migrates the database, and two that do so at once
fail over each other's tables.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import prefect
import uvicorn
from prefect.context import refresh_global_settings_context
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import MODELS_DEPENDENCIES
from prefect.settings import get_current_settings
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from flows.operate.environment import SERVER

GRACE_S = 3
"""How long open connections of browsers may hold up the end."""

POLL_S = 0.1


class Queuing(uvicorn.Server):
    """A server that starts while no other one of this Prefect folder does."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        with (get_current_settings().home / "tarmac-starting").open("ab") as lock:
            while not self.should_exit and _is_taken(lock.fileno()):
                await asyncio.sleep(POLL_S)
            if not self.should_exit:
                await super().startup(sockets)


def _is_taken(lock: int) -> bool:
    """Whether another process holds the lock; otherwise this one does, until the file is closed. On a file
    system without locks nobody has to wait."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    return False


class QueuingSqlite(AioSqliteConfiguration):
    """SQLite whose writers wait for one another."""

    @asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction, None]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


def _settle(host: str, port: int, is_temporary: bool) -> None:
    """Give this process Tarmac's settings of a server, where the user has none of their own.

    A temporary server has no pages, no schedules and no password: only its starter knows its address.
    """
    own = get_current_settings().to_environment_variables(exclude_unset=True)
    os.environ |= {**SERVER, "PREFECT_UI_URL": f"http://{host}:{port}", **own}
    os.environ |= {"PREFECT_SERVER_API_HOST": host, "PREFECT_SERVER_API_PORT": str(port)}
    os.environ["PREFECT__SERVER_FINAL"] = "1"
    if is_temporary:
        os.environ |= {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT_SERVER_UI_ENABLED": "false"}
        os.environ.pop("PREFECT_SERVER_API_AUTH_STRING", None)
    refresh_global_settings_context()


def main(descriptor: int, is_temporary: bool) -> None:
    """Serve until SIGTERM; exits with 3 where the server does not start."""
    listener = socket.socket(fileno=descriptor)
    host, port, *_ = listener.getsockname()
    _settle(host, port, is_temporary)
    server = get_current_settings().server
    url = server.database.connection_url
    address = "" if url is None else url.get_secret_value()
    os.umask(0o077)  # the database holds logs, parameters and the secrets of blocks
    if address.startswith("sqlite"):
        file = make_url(address).database
        if file and os.path.exists(file) and os.stat(file).st_uid == os.getuid():
            os.chmod(file, 0o600)
        MODELS_DEPENDENCIES["database_config"] = QueuingSqlite(connection_url=address)
    if not server.ui.v2_enabled:  # Prefect serves them nevertheless, and they ask a host of another company
        prefect.__ui_v2_static_path__ = Path(os.devnull) / "none"
    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        lifespan="on",
        log_level=server.logging_level.lower(),
        timeout_keep_alive=server.api.keepalive_timeout,
        timeout_graceful_shutdown=GRACE_S,
    )
    with listener:
        Queuing(config).run(sockets=[listener])


if __name__ == "__main__":
    main(int(sys.argv[1]), is_temporary="temporary" in sys.argv[2:])
