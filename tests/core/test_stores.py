import contextlib
import errno
import os
import re
import socket
import sqlite3
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import aiohttp
import botocore.exceptions
import pytest

from tasks.core import remote
from tasks.core.errors import UsageError
from tasks.core.patterns import base_folder, expand
from tasks.core.stores import (
    ABSENT,
    AHEAD,
    LocalStore,
    NotRegular,
    Unreachable,
    address_key,
    is_environment_error,
    is_hidden,
    is_valid,
    open_store,
    redact,
    split_location,
)
from tests.web import endless_server, failing_server, web_server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two splits of three tars, and what is none of the data."""
    for name in ("train/000000.tar", "train/000001.TAR", "train/000002.tar", "val/000000.tar", "read.me"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    for hidden in (".git/x.tar", "__MACOSX/._000000.tar", "val/.000000.tar.part"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_bytes(b"")
    return tmp_path


def found(folder: Path, pattern: str) -> list[str]:
    return [file.removeprefix(f"{folder}/") for file in expand(f"{folder}/{pattern}", (".tar",), "the.key")]


TRAIN = ["train/000000.tar", "train/000001.TAR", "train/000002.tar"]


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("val/000000.tar", ["val/000000.tar"]),
        ("train", TRAIN),
        ("", [*TRAIN, "val/000000.tar"]),
        ("t*", TRAIN),
        ("train/*", TRAIN),
        ("*/*.tar", ["train/000000.tar", "train/000002.tar", "val/000000.tar"]),
        ("train/00000[12].*", TRAIN[1:]),
        ("train/00000[!1].*", [TRAIN[0], TRAIN[2]]),
        ("**/00000[!1].*", [TRAIN[0], TRAIN[2], "val/000000.tar"]),
        ("**/000000.tar", ["train/000000.tar", "val/000000.tar"]),
        ("**/train/**", TRAIN),
        ("{val,train}/000000.tar", ["val/000000.tar", "train/000000.tar"]),
        ("{val,train}", ["val/000000.tar", *TRAIN]),
        ("train/{000000..000000}.tar", TRAIN[:1]),
        ("{train,val}/{000000..000000}.tar", ["train/000000.tar", "val/000000.tar"]),
        ("train/{000000,000002}.t?r", [TRAIN[0], TRAIN[2]]),
        ("{{val,train}/000000,train/000002}.tar", ["val/000000.tar", TRAIN[0], TRAIN[2]]),
    ],
)
def test_a_file_a_folder_and_patterns(folder: Path, pattern: str, files: list[str]) -> None:
    assert found(folder, pattern) == files


@pytest.mark.parametrize("last", [3, 11])
def test_a_gap_in_a_range_is_address_key(folder: Path, last: int) -> None:
    """Few members are looked for one by one, many in a list of their folder."""
    (folder / "train/000001.TAR").rename(folder / "train/000001.tar")
    for number in range(3, last + 1):
        (folder / f"train/{number:06d}.tar").write_bytes(b"")
    assert len(found(folder, f"train/{{000000..{last:06d}}}.tar")) == last + 1
    (folder / "train/000002.tar").unlink()
    with pytest.raises(UsageError, match=r"^the\.key: there is no .*/train/000002\.tar of .*\{000000\.\."):
        found(folder, f"train/{{000000..{last:06d}}}.tar")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("nowhere", r"^the\.key: there is no .*/nowhere"),
        ("nowhere/*.tar", r"^the\.key: there is no .*nowhere/\*\.tar"),
        ("*.tar", r"^the\.key: there is no .*\.tar file"),
        ("train/{2..0}.tar", r"^the\.key: \{2\.\.0\}"),
        ("{0..99999}/{0..99999}.tar", r"^the\.key: .* more than"),
        ("{0..99999999999999999999}.tar", r"^the\.key: .* more than"),
        (f"{{0..{'9' * 5000}}}.tar", r"^the\.key: .* more than"),
        ("{{" + "{a,b}" * 40 + "},x}.tar", r"^the\.key: .* more than"),
        ("read.me", r"^the\.key"),
    ],
)
def test_what_is_not_there_is_one_line(folder: Path, pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        found(folder, pattern)


def test_a_relative_pattern_starts_at_the_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "train")
    assert expand("*.tar", (".tar",)) == [f"{folder}/train/000000.tar", f"{folder}/train/000002.tar"]
    assert expand("../val", (".tar",)) == [f"{folder}/val/000000.tar"]
    assert base_folder("*.tar") == base_folder("000000.tar") == base_folder(".") == f"{folder}/train"


def test_a_name_that_looks_like_a_pattern_is_a_file_when_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "x[1]{a,b}.tar").write_bytes(b"")
    assert found(tmp_path, "x[1]{a,b}.tar") == ["x[1]{a,b}.tar"]
    assert base_folder(f"{tmp_path}/x[1]{{a,b}}.tar") == str(tmp_path)


@pytest.mark.parametrize(
    ("location", "base"),
    [
        ("s3://b/x/*.tar", "s3://b/x"),
        ("s3://b/x{0..3}/y/*.tar", "s3://b"),
        ("/data/x/[ab]/y.tar", "/data/x"),
        ("/data/x", "/data/x"),
        ("https://h/x/{0..2}.tar?token=1", "https://h/x"),
    ],
)
def test_the_folder_in_front_of_a_pattern(location: str, base: str) -> None:
    assert base_folder(location) == base


@pytest.mark.parametrize("name", ["raw[1]", "r{a,b}", "what?", "all*"])
def test_a_folder_that_looks_like_a_pattern_is_a_folder_when_there_is_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "x.tar").write_bytes(b"")
    assert found(tmp_path, name) == [f"{name}/x.tar"]
    assert base_folder(f"{tmp_path}/{name}") == f"{tmp_path}/{name}"


def test_a_question_mark_in_a_local_name_begins_no_query(tmp_path: Path) -> None:
    (tmp_path / "what?.tar").write_bytes(b"")
    assert found(tmp_path, "what?.tar") == ["what?.tar"]


def test_the_query_of_an_address_belongs_to_its_file() -> None:
    assert split_location("https://h/x/t.csv?at=a/b") == ("https://h/x", "t.csv?at=a/b")
    assert split_location("s3://b/x?/t.csv") == ("s3://b/x?", "t.csv")


@pytest.mark.parametrize("location", ["http://[bad/x.tar", "http:///x.tar", "s3:///x.tar"])
def test_an_address_that_is_none_names_the_key(location: str) -> None:
    with pytest.raises(UsageError, match=r"is no valid address$"):
        open_store(location, "the.key")


def test_no_secret_of_an_address_is_said(tmp_path: Path) -> None:
    with web_server(tmp_path, True) as (address, _):
        location = f"{address.replace('//', '//me:secret@')}/x.tar?X-Amz-Signature=secret"
        with pytest.raises(UsageError, match="there is no file") as caught:
            expand(location, (".tar",))
    assert "secret" not in str(caught.value)


def test_files_come_folder_by_folder_in_the_order_of_their_names(folder: Path) -> None:
    files = [file for file in LocalStore(str(folder)).files() if not is_hidden(file)]
    assert files == ["read.me", *TRAIN, "val/000000.tar"]


def test_linked_folders_are_followed_but_not_in_circles(folder: Path) -> None:
    (folder / "val" / "again").symlink_to(folder)
    (folder / "val" / "self").symlink_to(".")
    (folder / "broken").symlink_to("broken")
    files = [file for file in LocalStore(str(folder)).files() if not is_hidden(file)]
    assert files == ["broken", "read.me", *TRAIN, "val/000000.tar"]
    below = [file for file in LocalStore(str(folder / "val")).files() if not is_hidden(file)]
    assert below == ["000000.tar", "again/broken", "again/read.me", *(f"again/{file}" for file in TRAIN)]


def test_a_folder_is_listed_once_however_many_links_lead_to_it(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (folder / name).symlink_to(folder / "train")
        (folder / "val" / name).symlink_to(folder / "train")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    (outside / "x").mkdir(parents=True)
    (outside / "x" / "y.tar").write_bytes(b"")
    (outside / "x" / "back").symlink_to(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "seen.tar").write_bytes(b"")
    (folder / "c").symlink_to(".cache")
    for name in (".d", "d", "e"):
        (folder / name).symlink_to(outside)
    files = [file for file in LocalStore(str(folder)).files() if not is_hidden(file)]
    assert files == ["read.me", "c/seen.tar", "d/x/y.tar", *TRAIN, "val/000000.tar"]


def test_very_deep_folders_are_listed(tmp_path: Path) -> None:
    deep = "/".join(["d"] * 300)
    os.makedirs(tmp_path / deep)
    (tmp_path / deep / "x.tar").write_bytes(b"")
    assert list(LocalStore(str(tmp_path)).files()) == [f"{deep}/x.tar"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(LocalStore(str(tmp_path / "nowhere")).files())


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = LocalStore(str(tmp_path))
    for name in ("pipe", "."):
        with pytest.raises(NotRegular):
            store.open(name)
    assert store.stat("nowhere") == ABSENT


def test_what_the_system_says_of_itself_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/proc/self/environ")
    (tmp_path / "y").symlink_to("/proc")
    (tmp_path / "z").symlink_to(tmp_path / "data")
    (tmp_path / "data").write_bytes(b"data")
    store = LocalStore(str(tmp_path))
    for name in ("x", "y/self/environ", "/proc/self/cmdline"):
        with pytest.raises(NotRegular):
            store.read(name, 10)
        with pytest.raises(NotRegular):
            store.open(name)
    assert store.read("z", 10) == b"data"


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


def test_a_file_that_grows_while_it_is_read_is_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(b"x" * 100)
    before = os.stat(tmp_path / "x")
    monkeypatch.setattr(os, "fstat", lambda _: before)
    (tmp_path / "x").write_bytes(b"x" * 300_000)
    assert LocalStore(str(tmp_path)).read("x", 1 << 20) == b"x" * 300_000
    assert LocalStore(str(tmp_path)).read("x", 200) == b"x" * 201


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
            with pytest.raises(OSError, match="sends more than it was asked for") as caught:
                open_store(address).read("x", 1000)
            assert not isinstance(caught.value, Unreachable)
            with pytest.raises(OSError, match="sends more than it was asked for"):
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
    monkeypatch.setattr(remote, "BLOCK", 1 << 16)
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
    for name, seconds in (("CONNECT_S", 0.2), ("STALL_S", 0.2), ("REQUEST_S", 1), ("PAUSE_S", 0.01)):
        monkeypatch.setattr(remote, name, seconds)


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
            with pytest.raises(Unreachable, match="does not answer in time") as caught:
                attempt("x.png?signature=very-secret")
            assert "secret" not in str(caught.value) and "AKIA" not in str(caught.value)
        assert time.monotonic() - started < 10


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
        with pytest.raises(Unreachable, match="does not answer in time"):
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
            Unreachable, match=r"x\.tar: the connection broke; check the network and run again"
        ):
            open_store(address).open("x.tar")
        assert len(sent) == remote.TRIES


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
    with pytest.raises(Unreachable, match="cannot be reached"):
        open_store(address).stat("x")


def test_many_files_of_a_server_that_fails_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    names = [f"{number}.png" for number in range(200)]
    with failing_server(503) as (address, asked):
        store = open_store(address)
        store.look_ahead(names)
        assert len(asked) <= remote.TRIES * (remote.TOGETHER + remote.HOPELESS)
        for name in names:
            with pytest.raises(Unreachable):
                store.stat(name)
        assert len(pauses) == remote.TRIES - 1
    with failing_server(404) as (address, asked):
        store = open_store(address)
        store.look_ahead(names)
        assert [store.stat(name) for name in names] == [ABSENT] * len(names)
        assert len(asked) == len(names)


def test_a_package_that_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError) as caught:
        expand("s3://b/x.csv", (".csv",), "dataset.source.path")
    assert str(caught.value) == (
        "dataset.source.path: s3:// needs the package s3fs: pip install 'tarmac[remote]'"
    )


SIGNED = "https://me:secret@h:8080/a/b.png?X-Amz-Signature=secret&X-Amz-Date=1"


@pytest.mark.parametrize(
    ("location", "seen"),
    [
        (SIGNED, "https://h:8080/a/b.png"),
        ("http://[bad/x.png?secret", "http://[bad/x.png"),
        ("http://u:secret@[::1]:99999/x\n#secret", "http://[::1]:99999/x\n"),
        ("s3://b/x.png?secret", "s3://b/x.png"),
        ("http://", "http://"),
        ("/data/what?.csv", "/data/what?.csv"),
    ],
)
def test_what_is_shown_holds_no_secret_and_is_always_something(location: str, seen: str) -> None:
    assert redact(location) == seen


@pytest.mark.parametrize(
    "signed",
    [
        SIGNED.replace("secret", "other").replace("Date=1", "Date=2"),
        "https://h:8080/a/b.png?AWSAccessKeyId=A&Signature=s%2Fs&Expires=1",
        "https://h:8080/a/b.png?sv=2024&se=2025-01-01&sr=b&sp=r&skoid=1&sig=x%3D",
        "https://h:8080/a/b.png?ex=1&is=2&hm=3",
        "https://h:8080/a/b.png",
    ],
)
def test_an_address_that_is_signed_anew_names_the_same(signed: str) -> None:
    assert address_key(SIGNED) == address_key(signed) == "https://h:8080/a/b.png"


def test_a_query_that_says_which_file_it_is_still_does() -> None:
    names = {address_key(f"https://h/get?id={n}&token=secret") for n in range(3)}
    assert len(names) == 3 and not any("secret" in name or "id" in name for name in names)
    assert address_key("https://h/get?st=1") != address_key("https://h/get?st=2")
    assert address_key("s3://b/what?.png") == "s3://b/what?.png"


@pytest.mark.parametrize(
    "address",
    ["http://[bad/x", "http:///x", "s3:///x", "http://h:99999/x", "http://a b/x", "s3://a b/x", "https://"],
)
def test_an_address_without_a_host_or_bucket_is_none(address: str) -> None:
    assert not is_valid(address)


@pytest.mark.parametrize(
    "address",
    ["http://h", "https://u:p@h.x:80/y?z#w", "http://[::1]:1/x", "s3://b.c-d/x y", "http://münchen.de/"],
)
def test_an_address_with_one_is_one(address: str) -> None:
    assert is_valid(address)


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
    found, is_tried_again = remote.failure(error, "https://me:secret@h/x?sig=secret")
    assert re.search(says, str(found)) and is_tried_again == may_pass and "secret" not in str(found)


@pytest.mark.parametrize(
    ("error", "is_environment"),
    [
        (PermissionError(errno.EACCES, "x"), True),
        (OSError(errno.EIO, "x"), True),
        (OSError(errno.ENOSPC, "x"), True),
        (Unreachable(None, "the store does not answer", "s3://b"), True),
        (MemoryError(), True),
        (sqlite3.OperationalError("x"), True),
        (FileNotFoundError(errno.ENOENT, "Permission denied"), False),
        (Unreachable(errno.ENOENT, "there is no such bucket", "s3://b"), False),
        (NotRegular("not a regular file"), False),
        (ValueError("Permission denied"), False),
    ],
)
def test_an_error_of_the_environment_is_no_fault_of_the_data(error: Exception, is_environment: bool) -> None:
    assert is_environment_error(error) == is_environment
    wrapper = ValueError("the sample could not be read")
    wrapper.__cause__ = error
    assert is_environment_error(wrapper) == is_environment
