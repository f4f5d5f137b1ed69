"""The Prefect server that a command is told of: asked before any work, its refusals told in one line."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import get_current_settings

from tasks.core.errors import TarmacError, UsageError


def address() -> str | None:
    """Where the server is, by the environment or a profile of Prefect's; None where none is named."""
    return get_current_settings().api.url


def how_to_forget() -> str:
    """The command that takes the address away from where it is named."""
    named_here = "PREFECT_API_URL" in os.environ
    return "unset PREFECT_API_URL" if named_here else "prefect config unset PREFECT_API_URL"


@contextmanager
def asked(advice: str) -> Iterator[SyncPrefectClient]:
    """A client of the server that is named, which answers and lets it in; UsageError where it does not, with
    `advice` where there is none."""
    with told_of_refusals(), get_client(sync_client=True) as client:
        dead = client.api_healthcheck()
        if dead is not None:
            why = " ".join(str(dead).split())
            raise UsageError(f"{_named()}: no Prefect server answers there ({why}); {advice}")
        client.read_flows(limit=1)  # anybody is told of its health
        yield client


@contextmanager
def told_of_refusals() -> Iterator[None]:
    """One line where the server refuses what the block asks of it, or answers no more."""
    try:
        yield
    except PrefectHTTPStatusError as error:
        code, reason = error.response.status_code, " ".join(error.response.text.split())[:300]
        fix = "; set PREFECT_API_AUTH_STRING to the server's user:password" if code == 401 else ""
        raise UsageError(f"{_named()}: the server refuses ({code}): {reason}{fix}") from None
    except httpx.TransportError as error:
        why = str(error) or type(error).__name__
        raise TarmacError(
            f"{_named()}: the server answers no more ({why}); what is done stays, and the same command goes "
            "on with it"
        ) from None


def _named() -> str:
    url = address()
    return "Prefect's temporary server" if url is None else f"PREFECT_API_URL={url}"
