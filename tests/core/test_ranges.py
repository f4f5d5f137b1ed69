"""Plain requests for ranges: what servers answer in their place, how long they may take, and the order of ranges."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tasks.core.folders import open_store
from tasks.core.remote import clients, ranges, remote_files
from tasks.core.stores import StoreUnreachable
from tests.loader.shard_server import Server, serving
from tests.services import tls_proxy

CONTENT = os.urandom(300_000)
Behaviour = Callable[[socket.socket], None]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "PAUSE_S", 0.01)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "STALL_S", 0.5)


@contextmanager
def behaving(behave: Behaviour) -> Iterator[str]:
    """A server that does this with each connection once a request has come; its address."""

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            while client.recv(1 << 16):
                behave(client)

    def listen() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        listener.shutdown(socket.SHUT_RDWR)


def head(content: bytes = CONTENT, status: str = "206 Partial Content", **headers: str) -> bytes:
    fields = {
        "Content_Range": f"bytes 0-{len(content) - 1}/{len(CONTENT)}",
        "Content_Length": str(len(content)),
    }
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in (fields | headers).items() if value]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def drip(client: socket.socket, text: bytes) -> None:
    for number in range(len(text)):
        client.sendall(text[number : number + 1])
        time.sleep(0.1)


def silent(client: socket.socket) -> None:
    time.sleep(30)


def dripping_head(client: socket.socket) -> None:
    drip(client, head())


def dripping_body(client: socket.socket) -> None:
    client.sendall(head())
    drip(client, CONTENT)


def stopping(client: socket.socket) -> None:
    client.sendall(head() + CONTENT[:100_000])
    time.sleep(30)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("behave", [silent, dripping_head, dripping_body, stopping])
def test_no_request_takes_longer_than_its_limit_without_progress(behave: Behaviour) -> None:
    with behaving(behave) as address:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            ranges.get_range(address, 0, len(CONTENT))
        assert time.monotonic() - began < 4 * ranges.STALL_S


@pytest.mark.usefixtures("impatient")
def test_a_slow_server_has_as_long_as_it_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "LEAST", 10_000)

    def slow(client: socket.socket) -> None:
        client.sendall(head())
        for start in range(0, len(CONTENT), 30_000):
            time.sleep(0.2)
            client.sendall(CONTENT[start : start + 30_000])

    with behaving(slow) as address:
        began = time.monotonic()
        assert ranges.get_range(address, 0, len(CONTENT)).content == CONTENT
        assert time.monotonic() - began > 2 * ranges.STALL_S


@pytest.mark.parametrize(
    "answer",
    [
        head(status="200 OK", Content_Range=""),
        head(status="403 Forbidden"),
        head(status="302 Found", Location="http://127.0.0.1/elsewhere"),
        head(Content_Range=""),
        head(Content_Range="bytes 1-300000/300001"),
        head(Content_Range=f"bytes 0-99/{1 << 50}"),
        head(Content_Length=str(1 << 50)),
        head(Content_Length="9" * 5000),
        head(Content_Range=f"bytes 0-{'9' * 5000}/300000"),
        head(Content_Length="", Transfer_Encoding="chunked"),
        head(Content_Encoding="gzip"),
        head(X="y" * 200_000),
    ],
)
def test_another_answer_than_the_range_is_refused(answer: bytes) -> None:
    with (
        behaving(lambda client: client.sendall(answer + CONTENT)) as address,
        pytest.raises(ranges.Refused),
    ):
        ranges.get_range(address, 0, len(CONTENT))


@pytest.mark.parametrize("address", ["http://me:secret@127.0.0.1/x", "http://127.0.0.1/a b", "http:///x"])
def test_an_address_that_a_plain_request_cannot_have_is_refused(address: str) -> None:
    with pytest.raises(ranges.Refused):
        ranges.get_range(address, 0, 10)


@contextmanager
def counting() -> Iterator[tuple[str, set[socket.socket]]]:
    """A server that answers with CONTENT; its address, and the connections that it gets."""
    connections: set[socket.socket] = set()

    def answer(client: socket.socket) -> None:
        connections.add(client)
        client.sendall(head() + CONTENT)

    with behaving(answer) as address:
        yield address, connections


def test_connections_are_kept_and_a_closed_one_is_no_failure() -> None:
    connections: list[socket.socket] = []

    def answer(client: socket.socket) -> None:
        if client not in connections:
            connections.append(client)
        client.sendall(head() + CONTENT)
        if len(connections) == 1:
            served.release()

    served = threading.Semaphore(0)
    with behaving(answer) as address:
        for _ in range(3):
            assert ranges.get_range(address, 0, len(CONTENT)) == (CONTENT, len(CONTENT), b"")
        assert len(connections) == 1
        for _ in range(3):
            served.acquire()
        connections[0].shutdown(socket.SHUT_RDWR)
        assert ranges.get_range(address, 0, len(CONTENT)).content == CONTENT
        assert len(connections) == 2


def test_a_connection_that_was_idle_for_long_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting() as (address, connections):
        ranges.get_range(address, 0, len(CONTENT))
        monkeypatch.setattr(ranges, "IDLE_S", 0)
        ranges.get_range(address, 0, len(CONTENT))
        assert len(connections) == 2


def test_a_host_is_given_up_in_time_however_many_addresses_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "CONNECT_S", 1.0)
    resolve = socket.getaddrinfo
    with (
        behaving(lambda client: client.sendall(head() + CONTENT)) as address,
        socket.create_server(("127.0.0.1", 0), backlog=0) as full,
        socket.create_connection(full.getsockname()),  # all that it takes; it drops what others send
    ):
        dead = resolve(*full.getsockname(), type=socket.SOCK_STREAM) * 7
        monkeypatch.setattr(socket, "getaddrinfo", lambda *of, **how: [*dead, *resolve(*of, **how)])
        began = time.monotonic()
        assert ranges.get_range(address, 0, len(CONTENT)).content == CONTENT
        assert 0.5 < time.monotonic() - began < 2


def test_plain_requests_are_made_over_tls_to_a_server_with_a_known_certificate(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_proxy(server.server_port, tmp_path) as (port, certificate):
        address = f"https://127.0.0.1:{port}/big"
        with pytest.raises(ranges.Refused, match="CERTIFICATE_VERIFY_FAILED"):
            ranges.get_range(address, 0, 1000)
        monkeypatch.setattr(ranges, "_tls", lambda: ssl.create_default_context(cafile=str(certificate)))
        for start in (0, 1000):
            assert ranges.get_range(address, start, start + 1000).content == CONTENT[start : start + 1000]


def test_where_the_environment_names_a_proxy_all_requests_go_there(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy is asked for the whole address, which this server takes for a path."""
    (tmp_path / "http:/nowhere.invalid").mkdir(parents=True)
    (tmp_path / "big").rename(tmp_path / "http:/nowhere.invalid/big")
    monkeypatch.setenv("http_proxy", server.address)
    monkeypatch.setattr(ranges, "_connected", None)
    with open_store("http://nowhere.invalid").open("big") as file:
        assert file.read() == CONTENT
    assert server.asked["big"] > 30


def test_a_forked_process_has_connections_of_its_own() -> None:
    with counting() as (address, connections):
        ranges.get_range(address, 0, len(CONTENT))
        with ranges._lock:  # as where another thread is about to take a connection
            child = os.fork()
            if not child:
                signal.alarm(30)
                try:
                    os._exit(ranges.get_range(address, 0, len(CONTENT)).content != CONTENT)
                finally:
                    os._exit(2)
        assert os.waitpid(child, 0)[1] == 0 and len(connections) == 2
        assert ranges.get_range(address, 0, len(CONTENT)).content == CONTENT and len(connections) == 2


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(ranges, "BLOCK", 8192)
    monkeypatch.setattr(remote_files, "BUFFER", 8192)
    (tmp_path / "big").write_bytes(CONTENT)
    with serving(tmp_path) as server:
        yield server


def test_several_ranges_are_fetched_at_once_and_come_in_order(server: Server) -> None:
    under_way, most, lock = Counter[str](), [0], threading.Lock()

    def slowly(handler: Any, content: bytes) -> bool:
        with lock:
            under_way["big"] += 1
            most[0] = max(most[0], under_way["big"])
        time.sleep(0.002 * (len(content) + int(handler.headers["Range"][6:].split("-")[0]) // 8192) % 0.02)
        with lock:
            under_way["big"] -= 1
        return False

    server.fault = slowly
    with open_store(server.address).open("big") as file:
        assert b"".join(iter(lambda: file.read(5000), b"")) == CONTENT
    assert 2 < most[0] <= ranges.AHEAD
    with open_store(server.address).open("big", in_order=False) as file:
        file.seek(100_000)
        assert file.read(150_000) == CONTENT[100_000:250_000]


def test_a_reader_that_jumps_gets_what_lies_there(server: Server) -> None:
    with open_store(server.address).open("big") as file:
        for start in (0, 200_000, 1000, 1000, 290_000, 50_000):
            file.seek(start)
            assert file.read(20_000) == CONTENT[start : start + 20_000]
        asked = until_it_rests(server)
        file.seek(0)
        file.read(10)
        assert until_it_rests(server) - asked < ranges.AHEAD, (
            "after a jump nobody knows that the reader goes on"
        )


def until_it_rests(server: Server) -> int:
    """The number of requests, once no more of them come."""
    before = -1
    while before != server.asked["big"]:
        before = server.asked["big"]
        time.sleep(0.2)
    return before


def test_many_files_share_the_requests_of_a_process(server: Server) -> None:
    store = open_store(server.address)
    with ThreadPoolExecutor(40) as threads:
        found = list(threads.map(lambda _: store.open("big").read(), range(40)))
    assert found == [CONTENT] * 40


def test_many_readers_at_once_request_the_bytes_of_all_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "BLOCK", 1)
    under_way, most, lock = [0], [0], threading.Lock()

    def fetch(start: int, end: int) -> memoryview:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        found = memoryview(CONTENT)[start:end]
        with lock:
            under_way[0] -= 1
        return found

    def read(_: int) -> bytes:
        coming = ranges.RangesAhead(fetch, 0, 500, 1)
        together.wait()
        pieces = [bytes(coming.next()) for _ in range(500)]
        coming.close()
        return b"".join(pieces)

    together = threading.Barrier(24)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(24) as threads:
            assert list(threads.map(read, range(24))) == [CONTENT[:500]] * 24
    finally:
        sys.setswitchinterval(before)
    assert most[0] <= 24 + ranges.AHEAD_OF_ALL


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("drips", [True, False])
def test_a_server_that_stalls_after_the_beginning_is_named(server: Server, drips: bool) -> None:
    def stalls(handler: Any, content: bytes) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Range", f"{handler.headers['Range'].replace('=', ' ')}/{len(CONTENT)}")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        with suppress(OSError):
            while drips:
                handler.wfile.write(b"x")
                time.sleep(0.1)
        server.is_over.wait(30)
        return True

    with open_store(server.address).open("big") as file:
        file.read(10)
        server.fault = stalls
        began = time.monotonic()
        with pytest.raises(
            StoreUnreachable, match=r"127\.0\.0\.1:\d+/big: the store does not answer in time"
        ):
            file.read()
    assert time.monotonic() - began < 4 * clients.TRIES * ranges.STALL_S


def test_a_file_of_known_size_is_begun_at_once_and_read_whole_where_there_are_no_ranges(
    server: Server,
) -> None:
    store = open_store(server.address)
    for _ in range(2):  # the second time it is known that the host gives ranges
        with store.open("big", size=len(CONTENT)) as file:
            assert file.read() == CONTENT
    until_it_rests(server)

    def whole(handler: Any, content: bytes) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        with suppress(OSError):
            handler.wfile.write(CONTENT)
        return True

    server.fault = whole
    with store.open("big", size=len(CONTENT)) as file:
        assert file.read() == CONTENT


def test_a_file_that_changes_while_it_is_read_is_an_error(server: Server, tmp_path: Path) -> None:
    with open_store(server.address).open("big") as file:
        assert file.read(8192) == CONTENT[:8192]
        until_it_rests(server)
        (tmp_path / "big").write_bytes(CONTENT + b"more")
        with pytest.raises(OSError, match="has changed while it was read"):
            file.read()


def test_a_file_whose_size_the_server_does_not_tell_is_an_error(server: Server) -> None:
    def unknown(handler: Any, content: bytes) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Range", f"{handler.headers['Range'].replace('=', ' ')}/*")
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)
        return True

    server.fault, server.has_head = unknown, False
    with pytest.raises(OSError, match="does not tell the file's size"):
        open_store(server.address).read("big", 1 << 20)


def test_an_address_with_a_user_is_asked_plainly_once(server: Server) -> None:
    def locked(handler: Any, content: bytes) -> bool:
        if handler.headers["Authorization"]:
            return False
        server.asked["denied"] += 1
        handler.send_error(401)
        return True

    server.fault = locked
    with open_store(server.address.replace("//", "//me:secret@")).open("big") as file:
        assert file.read() == CONTENT
    assert server.asked["denied"] <= ranges.AHEAD


def test_a_file_that_is_longer_than_it_was_is_read_as_it_is(server: Server) -> None:
    for _ in range(2):
        with open_store(server.address).open("big", size=100_000) as file:
            assert file.read() == CONTENT


@contextmanager
def redirecting(to: str) -> Iterator[tuple[str, list[str]]]:
    """A server that redirects to another one, each time by a new address, and the paths that it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"{to}{self.path}?signature={len(asked)}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as front:
        threading.Thread(target=front.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{front.server_port}", asked
        front.shutdown()


def test_a_redirect_is_followed_once_and_again_when_its_address_expires(server: Server) -> None:
    with redirecting(server.address) as (address, asked), open_store(address).open("big") as file:
        assert file.read(100_000) == CONTENT[:100_000]
        assert asked == ["/big"]

        def expired(handler: Any, content: bytes) -> bool:
            if is_expired := handler.path.endswith("signature=1"):
                handler.send_error(403)
            return is_expired

        server.fault = expired
        assert file.read() == CONTENT[100_000:]
        assert 2 <= len(asked) <= 1 + 2 * ranges.AHEAD, "only ranges that were under way follow it again"


def test_announced_files_are_opened_together(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}").write_bytes(b"%d" % number * 100)
    under_way, most, lock = [0], [0], threading.Lock()

    def slowly(handler: Any, content: bytes) -> bool:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.1)
        with lock:
            under_way[0] -= 1
        return False

    with serving(tmp_path) as server:
        server.fault = slowly
        store = open_store(server.address)
        names = [f"{number}" for number in range(100)]
        store.announce(names, 1000)
        read = [name for name in names if name not in ("3", "4", "50")]  # as where a caption cannot be read
        assert [store.read(name, 1000) for name in read] == [name.encode() * 100 for name in read]
        assert 8 < most[0] <= ranges.IN_FLIGHT
        assert server.asked.total() <= len(names) + 1
        store.announce(["nowhere", "5"], 1000)
        with pytest.raises(FileNotFoundError, match="no such file"):
            store.read("nowhere", 1000)
        assert store.read("7", 1000) == b"7" * 100, "one that was not announced"
