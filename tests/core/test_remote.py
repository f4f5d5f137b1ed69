"""Web servers that misbehave, and how remote stores survive them."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import botocore.exceptions
import pytest

from tasks.core.errors import UsageError
from tasks.core.folders import open_store
from tasks.core.patterns import expand
from tasks.core.remote import clients, ranges, remote_stores
from tasks.core.stores import ABSENT, AHEAD, StoreUnreachable
from tests.web import endless_server, failing_server, web_server


@pytest.mark.parametrize("location", ["http://[bad/x.tar", "http:///x.tar", "s3:///x.tar"])
def test_an_address_that_is_none_names_the_key(location: str) -> None:
    with pytest.raises(UsageError, match=r"is not a valid address$"):
        open_store(location, "the.key")


def test_no_secret_of_an_address_is_said(tmp_path: Path) -> None:
    with web_server(tmp_path, True) as (address, _):
        location = f"{address.replace('//', '//me:secret@')}/x.tar?X-Amz-Signature=secret"
        with pytest.raises(UsageError, match="there is no file") as caught:
            expand(location, (".tar",))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, AHEAD, AHEAD + 1, 6_000_000])
def test_a_file_is_read_whole_or_one_byte_beyond_what_is_wanted(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "x").write_bytes(content)
    with web_server(tmp_path, True) as (parts, _), web_server(tmp_path, False) as (whole, _):
        for store in map(open_store, (str(tmp_path), parts, whole)):
            for most in (size - 1, size, 801_000_000):
                assert store.read("x", max(most, 0)) == content[: max(most, 0) + 1]
            with pytest.raises(FileNotFoundError):
                store.read("nowhere", 1)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (206, {"Content-Range": "bytes 0-99/100"}),
        (206, {"Content-Range": f"bytes 0-99/{1 << 50}"}),
        (200, {}),
        (200, {"Content-Length": str(1 << 50)}),
    ],
)
def test_a_server_that_sends_without_end_fills_nothing(status: int, headers: dict[str, str]) -> None:
    with endless_server(status, headers) as (address, sent):
        if status == 200:
            assert len(open_store(address).read("x", 1000)) == 1001
        else:
            with pytest.raises(OSError, match="sends more than was requested") as caught:
                open_store(address).read("x", 1000)
            assert not isinstance(caught.value, StoreUnreachable)
            with pytest.raises(OSError, match="sends more than was requested"):
                open_store(address).open("x")
        assert sent[0] < 64 << 20


def test_a_server_that_claims_any_size_gets_no_memory_for_it() -> None:
    with endless_server(206, {"Content-Range": f"bytes 0-9/{1 << 50}"}, most=10) as (address, _):
        tracemalloc.start()
        try:
            file = open_store(address).open("x", in_order=False)
            with pytest.raises(OSError, match="changed while it was read"):
                file.read()
            assert tracemalloc.get_traced_memory()[1] < 24 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("gives_parts", [True, False])
def test_a_web_server_is_read_once_in_order(
    tmp_path: Path, gives_parts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "BLOCK", 1 << 16)
    content = os.urandom(1_000_000)
    (tmp_path / "big one.bin").write_bytes(content)
    (tmp_path / "empty").write_bytes(b"")
    with web_server(tmp_path, gives_parts) as (address, sent):
        store = open_store(address)
        with store.open("big one.bin") as file:
            assert b"".join(iter(lambda: file.read(10_000), b"")) == content
            assert sum(sent) <= 1.1 * len(content)
            file.seek(500_000)
            assert file.read(10) == content[500_000:500_010]
        with store.open("big one.bin", in_order=False) as file:
            file.seek(-10, os.SEEK_END)
            assert file.read(10) == content[-10:]
        assert store.open("empty").read() == b""
        assert store.stat("big one.bin").size == len(content)


def test_a_web_server_lists_its_folders(tmp_path: Path) -> None:
    for name in ("a b#1.png", "x/二.png", "x/y/z.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    with web_server(tmp_path, False) as (address, _):
        store = open_store(address)
        assert list(store.files()) == ["a b#1.png", "x/二.png", "x/y/z.png"]
        assert [store.open(file).read().decode() for file in store.files()] == list(store.files())
        assert store.stat("x") == store.stat("nowhere") == ABSENT
        assert expand(f"{address}/x", (".png",)) == [f"{address}/x/二.png", f"{address}/x/y/z.png"]
        with pytest.raises(FileNotFoundError, match="no such file"):
            store.open("nowhere")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short patience, and no file systems kept from other tests."""
    for module, name, seconds in (
        (ranges, "CONNECT_S", 0.2),
        (ranges, "STALL_S", 0.2),
        (clients, "STAT_S", 1),
        (clients, "PAUSE_S", 0.01),
    ):
        monkeypatch.setattr(module, name, seconds)


@pytest.mark.parametrize("scheme", ["http", "s3"])
def test_a_server_that_says_nothing_is_an_error_soon(
    scheme: str, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAKNOWN")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
        store = open_store(address.replace("//", "//me:very-secret@") if scheme == "http" else "s3://bucket")
        started = time.monotonic()
        for attempt in (store.open, store.stat):
            with pytest.raises(StoreUnreachable, match="does not answer in time") as caught:
                attempt("x.png?signature=very-secret")
            assert "secret" not in str(caught.value) and "AKIA" not in str(caught.value)
        assert time.monotonic() - started < 40


def test_a_server_that_drips_is_given_up(quick: None) -> None:
    """It says something all the time, so only the limit of the whole request ends it."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:

        def drip() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                    client.sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100000\r\n\r\n")
                    threading.Thread(target=drop, args=(client,), daemon=True).start()
                except OSError:
                    return

        def drop(client: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while True:
                    client.sendall(b"x")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        with pytest.raises(StoreUnreachable, match="does not answer in time"):
            open_store(f"http://127.0.0.1:{listener.getsockname()[1]}").open("x")
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def dropping_server(content: bytes, status: int, drops: int) -> Iterator[tuple[str, list[int]]]:
    """A web server that closes the connection half-way through its first `drops` answers, and how many bytes
    it sent in each."""
    sent: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()

        def do_GET(self) -> None:
            found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
            assert found is not None
            start, stop = (int(found[1]), int(found[2]) + 1) if status == 206 else (0, len(content))
            part = content[start:stop]
            self.send_response(status)
            self.send_header("Content-Length", str(len(part)))
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(content)}")
            self.end_headers()
            given = part[: len(part) // 2] if len(sent) < drops else part
            sent.append(len(given))
            self.wfile.write(given)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()


@pytest.mark.parametrize("status", [200, 206])
def test_a_connection_that_breaks_is_tried_again(status: int, quick: None) -> None:
    content = os.urandom(200_000)
    with dropping_server(content, status, drops=2) as (address, sent):
        with open_store(address).open("x.tar") as file:
            assert file.read() == content
        assert len(sent) == 3
    with dropping_server(content, status, drops=9) as (address, sent):
        with pytest.raises(
            StoreUnreachable, match=r"x\.tar: the connection broke; check the network and run again"
        ):
            open_store(address).open("x.tar")
        assert len(sent) == clients.TRIES


def test_a_server_without_parts_costs_disk_and_no_memory(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(64 << 20))
    with web_server(tmp_path, gives_parts=False) as (address, sent):
        tracemalloc.start()
        try:
            with open_store(address).open("big") as file:
                assert sum(len(block) for block in iter(lambda: file.read(1 << 20), b"")) == 64 << 20
            assert tracemalloc.get_traced_memory()[1] < 24 << 20
        finally:
            tracemalloc.stop()
    assert sum(sent) == 64 << 20


def test_a_server_that_is_not_there_is_an_error(quick: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        open_store(address).stat("x")


def test_many_files_of_a_server_that_fails_are_given_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PAUSE_S", 0.01)
    names = [f"{number}.png" for number in range(200)]
    with failing_server(503) as (address, asked):
        store = open_store(address)
        store.look_ahead(names)
        for name in names:
            with pytest.raises(StoreUnreachable):
                store.stat(name)
        assert len(asked) <= clients.TRIES * (remote_stores.TOGETHER + remote_stores.HOPELESS)
    with failing_server(404) as (address, asked):
        store = open_store(address)
        store.look_ahead(names)
        assert [store.stat(name) for name in names] == [ABSENT] * len(names)
        assert len(asked) == len(names)


class CredentialsTimeout(Exception):
    """Of somebody else's making, whose name says nothing."""


@pytest.mark.parametrize(
    ("error", "says", "may_pass"),
    [
        (botocore.exceptions.NoCredentialsError(), "there are no credentials", False),
        (botocore.exceptions.ReadTimeoutError(endpoint_url="https://h"), "does not answer in time", True),
        (TimeoutError(), "does not answer in time", True),
        (aiohttp.InvalidURL("http://a b"), "no valid address", False),
        (ConnectionResetError(), "cannot be reached", True),
        (CredentialsTimeout(), r"cannot be reached, or the connection broke \(CredentialsTimeout\)", True),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "where temporary files are kept", False),
    ],
)
def test_an_error_of_a_client_library_is_known_by_its_class(
    error: Exception, says: str, may_pass: bool
) -> None:
    found, is_tried_again = clients.failure(error, "s3://me:secret@h/x?sig=secret")
    assert re.search(says, str(found)) and is_tried_again == may_pass and "secret" not in str(found)
