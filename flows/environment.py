"""How Prefect behaves inside Tarmac: no telemetry, a quiet terminal, JSON results, a server where none is.

These are defaults: what the user's environment says wins. They must be set before Prefect is imported.
"""

from __future__ import annotations

import os

DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
}

QUIET = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
"""For a person at a terminal, whose screen shows the stages; a worker keeps Prefect's own lines."""


def prepare(quiet: bool) -> None:
    """Set the defaults in this process's environment."""
    for name, value in {**DEFAULTS, **(QUIET if quiet else {})}.items():
        os.environ.setdefault(name, value)
