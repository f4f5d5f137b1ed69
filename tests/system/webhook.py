"""A web hook on this machine that Prefect's server sends its notifications to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.services import Api


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """The hook's address, and the bodies of what it was sent."""
    heard: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    web = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{web.server_port}/", heard
    finally:
        web.shutdown()
        web.server_close()


@contextmanager
def hearing(api: Api) -> Iterator[list[str]]:
    """The messages that reach the notification block custom-webhook/team; afterwards no automation sends any."""
    kind = api.get("/block_types/slug/custom-webhook")["id"]
    [schema] = api.filter("block_schemas", block_schemas={"block_type_id": {"any_": [kind]}})[:1]
    with listening() as (url, heard):
        data = {"name": "team", "url": url, "method": "POST", "json_data": {"text": "{{subject}} {{body}}"}}
        body = {"name": "team", "block_type_id": kind, "block_schema_id": schema["id"], "data": data}
        block = api.ask("POST", "/block_documents/", body).raise_for_status().json()["id"]
        yield heard
    for automation in api.filter("automations"):
        if any(action.get("block_document_id") == block for action in automation["actions"]):
            api.ask("DELETE", f"/automations/{automation['id']}").raise_for_status()
    api.ask("DELETE", f"/block_documents/{block}").raise_for_status()
