"""A real S3 server on the loopback interface, and a wire to it that counts, cuts and stalls."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.services import free_port, until

SECRET = "a-secret-nobody-may-see"


class Wire:
    """A TCP proxy: `received` counts the bytes that came from the server."""

    def __init__(self, port: int) -> None:
        self.received = 0
        self.is_stalled = False
        self._to = port
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close every connection, and take no more."""
        for one in [self._listener, *self._open]:
            _close(one)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                return
            self._open += [client, server]
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if self.is_stalled:
                    continue
                self.received += len(data) if is_answer else 0
                target.sendall(data)
        except OSError:
            pass
        _close(target)


def _close(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def moto_server(log: Path) -> Iterator[int]:
    """moto's server as a process of its own; its port."""
    port = free_port()
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        until("the S3 server's start", lambda: _listens(port), 30)
        yield port
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def environment(port: int) -> dict[str, str]:
    """What a user sets for a server of their own."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "AKIATESTOFTARMAC",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def reached_through(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """This process talks to the server over a wire of its own, without any file system of earlier tests."""
    import s3fs

    wire = Wire(port)
    for name, value in environment(wire.port).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    yield wire
    wire.cut()
    s3fs.S3FileSystem.clear_instance_cache()


def put(folder: Path, bucket: str) -> None:
    """A folder's files as objects."""
    client = _client()
    client.create_bucket(Bucket=bucket)
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=bucket, Key=path.relative_to(folder).as_posix(), Body=path.read_bytes())


def objects(bucket: str) -> dict[str, bytes]:
    client = _client()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
    return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


def replace(bucket: str, key: str, content: bytes) -> None:
    _client().put_object(Bucket=bucket, Key=key, Body=content)


def delete(bucket: str, key: str) -> None:
    _client().delete_object(Bucket=bucket, Key=key)


def _client() -> Any:
    import boto3

    return boto3.client("s3")
