"""How Prefect behaves inside Tarmac: no telemetry, a quiet terminal, limits that survive a server's restart.

These are defaults: the user's environment takes precedence. They must be set before Prefect is imported.
"""

from __future__ import annotations

import logging
import os

DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
}

SERVER = {
    # The V2 pages ask a host of another company despite every opt-out; `serve` removes them.
    "PREFECT_SERVER_UI_V2_ENABLED": "false",
    # Without a host the pages find the API wherever they are reached: a tunnel, a proxy, another machine.
    "PREFECT_SERVER_UI_API_URL": "/api",
    # Leases of concurrency limits that are kept in memory end with the server, and the runs 2 minutes later.
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    # A running flow sends a pulse every few seconds, which is soon worthless; a week of them fills a disk.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_EVENT_RETENTION_OVERRIDES": '{"tarmac.flow-run.pulse": 3600}',
    # Flow runs that ended a year ago go, with their logs and artifacts; Prefect itself keeps them for ever.
    "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(365 * 86400),
}
"""The settings of a server that Tarmac starts."""

THIS_HOST = ("127.0.0.1", "localhost")

QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
}
"""The settings at a terminal, whose screen shows the stages; a worker keeps Prefect's own lines."""


def prepare(quiet: bool) -> None:
    """Set the defaults in this process's environment."""
    for name, value in {**DEFAULTS, **(QUIET if quiet else {})}.items():
        os.environ.setdefault(name, value)
    logging.raiseExceptions = not quiet  # otherwise Prefect prints each line that a server does not accept
    if secret := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", secret)  # who starts the server may use it
    # A proxy must not be asked for the server on this host: it would look for it on its own host.
    either = [os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    spared = [host.strip() for hosts in either for host in hosts.split(",") if host.strip()]
    if "*" not in spared:
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*spared, *THIS_HOST]))
