"""As much of a wandb server as the client asks of one: it keeps the rows of each run, can refuse them, and can hang.

Its answers are those that wandb 0.31 needs; the address is its `url`.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ENTITY = "lab"
SLOW_S = 1.5


class Server:
    """`rows` are the history rows by run and `_step`, so that a row replaces an earlier one of its step, as on
    the real server; `lines` counts the lines that held them. `status` is what an upload of rows is answered.
    While `answers` is cleared it takes every request and answers none. `mode` is how it treats every request: `ok`,
    `slow`, `reset` (it ends the connection), or a status such as `500`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.status = 200
        self.mode = "ok"
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()
        self.rows: dict[str, dict[int, dict[str, Any]]] = {}
        self.lines: Counter[str] = Counter()
        self.ended: set[str] = set()

    def uids(self, run_id: str) -> list[str]:
        return [row["uid"] for _, row in sorted(self.rows[run_id].items())]

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path != "/graphql":
            return self._take_rows(path.split("/")[-2], body)
        variables = body.get("variables") or {}
        query = body["query"]
        if "viewer" in query:
            return 200, {"data": {"viewer": {"id": "u", "entity": ENTITY, "username": "u", "flags": "{}"}}}
        if "upsertBucket" in query:
            bucket = self._bucket(self.rows.setdefault(variables["name"], {}), variables["name"])
            return 200, {"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}}
        if "historyTail" in query:
            known = self.rows.get(variables["name"])
            bucket = None if known is None else self._bucket(known, variables["name"])
            return 200, {"data": {"model": {"id": "p", "name": "p", "bucket": bucket}}}
        return 200, {"data": {}, "errors": [{"message": "not known here"}]}

    def _bucket(self, rows: dict[int, dict[str, Any]], run_id: str) -> dict[str, Any]:
        return {
            "id": run_id,
            "name": run_id,
            "displayName": run_id,
            "summaryMetrics": "{}",
            "config": "{}",
            "historyLineCount": self.lines[run_id],
            "eventsLineCount": 0,
            "logLineCount": 0,
            "historyTail": json.dumps([json.dumps(rows[max(rows)])] if rows else []),
            "eventsTail": "[]",
            "project": {"id": "p", "name": "p", "entity": {"id": "e", "name": ENTITY}},
        }

    def _take_rows(self, run_id: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.status != 200:
            return self.status, {"error": "refused by the test"}
        history = body.get("files", {}).get("wandb-history.jsonl", {"content": [], "offset": 0})
        for line in history["content"]:
            row = json.loads(line)
            self.rows[run_id][row["_step"]] = row
        self.lines[run_id] = max(self.lines[run_id], history["offset"] + len(history["content"]))
        if body.get("complete"):
            self.ended.add(run_id)
        return 200, {"exitcode": None, "limits": {}}


@contextmanager
def serving() -> Iterator[Server]:
    """A server for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            server.answers.wait()
            server.asked += 1
            if server.mode == "reset":
                linger = struct.pack("ii", 1, 0)  # so that closing the connection resets it
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.connection.close()
                return
            if server.mode == "slow":
                time.sleep(SLOW_S)
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            is_refused = server.mode.isdigit()
            refusal = (int(server.mode), {"error": "refused by the test"}) if is_refused else None
            status, value = refusal or server.post(self.path, json.loads(data))
            answer = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        server = Server(f"http://127.0.0.1:{listener.server_address[1]}")
        listener.daemon_threads = True
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield server
        listener.shutdown()
