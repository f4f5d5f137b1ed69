"""Files at web addresses are fetched from a real server of faults, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.core.errors import UsageError
from tasks.core.remote import addresses, hosts
from tasks.core.remote.addresses import AddressFetcher
from tasks.core.remote.answers import BUSY_TRIES, TRIES, Unfetched
from tests.picture_server import PictureServer, picture, picture_server

MOST = 1 << 20
GONE = {
    "400": "answers 400 Bad Request",
    "401": "answers 401 Unauthorized",
    "403": "answers 403 Forbidden",
    "404": "answers 404 Not Found",
    "410": "answers 410 Gone",
    "451": "answers 451 Unavailable For Legal Reasons",
    "loop": "redirects more than 5 times",
    "file": "redirects to no address of a web server",
    "ftp": "redirects to no address of a web server",
    "noai": "forbids its use, by X-Robots-Tag: noai, noimageindex",
}
PASSING = {
    "500": ("answers 500 Internal Server Error", TRIES),
    "503": ("answers 503 Service Unavailable", TRIES),
    "reset": ("broke the connection", TRIES),
    "short": ("broke the connection", TRIES),
}


@pytest.fixture(scope="module")
def server() -> Iterator[PictureServer]:
    with picture_server() as running:
        yield running


@pytest.fixture
def fetcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddressFetcher]:
    monkeypatch.setattr(addresses, "PAUSE_S", 0.01)
    made = AddressFetcher(tmp_path)
    yield made
    made.close()


def failure(fetcher: AddressFetcher, address: str, most: int = MOST) -> tuple[str, str]:
    with pytest.raises(Unfetched) as raised:
        fetcher.fetch(address, most)
    return raised.value.problem, str(raised.value)


@pytest.mark.parametrize("fault", GONE)
def test_what_is_gone_is_asked_for_once(fault: str, server: PictureServer, fetcher: AddressFetcher) -> None:
    before = server.asked
    problem, text = failure(fetcher, f"{server.address}/{fault}/1.jpg")
    assert (problem, text) == ("gone", f"127.0.0.1:{server.port} {GONE[fault]}")
    if fault != "loop":
        assert (server.asked - before)[f"/{fault}/1.jpg"] == 1


@pytest.mark.parametrize("fault", PASSING)
def test_what_may_pass_is_tried_again(fault: str, server: PictureServer, fetcher: AddressFetcher) -> None:
    path, (text, tries) = f"/{fault}/2.jpg", PASSING[fault]
    found = failure(fetcher, server.address + path)
    assert found == ("unreachable", f"127.0.0.1:{server.port} {text}, tried {tries} times")
    # The client itself asks once more where a connection breaks, because it may have been an old one.
    assert tries <= server.asked[path] <= (tries if fault.isdigit() else 2 * tries)
    passing = f"/until/{tries - 1}/{fault}/3.jpg"
    assert fetcher.fetch(server.address + passing, MOST) == picture(3)
    assert server.asked[passing] >= tries


def test_files_and_what_only_looks_like_one(server: PictureServer, fetcher: AddressFetcher) -> None:
    assert fetcher.fetch(f"{server.address}/moved/0.jpg", MOST) == picture(1)
    assert fetcher.fetch(f"{server.address}/html/1.jpg", MOST).startswith(b"<!doctype html>")
    assert fetcher.fetch(f"{server.address}/empty/1.jpg", MOST) == b""
    for path in ("huge/1.jpg", "endless/1.jpg"):
        problem, text = failure(fetcher, f"{server.address}/{path}")
        assert (problem, text) == (
            "too_large",
            "more than 1,048,576 bytes, as no image within the limits has",
        )


def test_no_redirect_leads_from_a_public_host_into_a_private_network(
    server: PictureServer, fetcher: AddressFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """127.0.0.10 and 127.0.0.11 stand for public hosts."""
    monkeypatch.setattr(hosts, "is_public", lambda peer: peer in ("127.0.0.10", "127.0.0.11"))
    public = server.on("127.0.0.10")
    assert fetcher.fetch(f"{public}/to/127.0.0.11/61.jpg", MOST) == picture(61)
    assert fetcher.fetch(f"{server.address}/to/127.0.0.2/62.jpg", MOST) == picture(62)
    before = server.asked
    for target in ("127.0.0.2", "localhost", "127.0.0.2"):
        found = failure(fetcher, f"{public}/to/{target}/63.jpg")
        assert found == ("gone", f"127.0.0.10:{server.port} redirects to an address within a private network")
    assert "/63.jpg" not in server.asked - before
    assert fetcher.fetch(f"{server.on('127.0.0.2')}/64.jpg", MOST) == picture(64), (
        "as the table names it itself"
    )


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        *((one, False) for one in ("127.0.0.1", "10.1.2.3", "192.168.0.1", "172.16.0.1", "169.254.169.254")),
        *(
            (one, False)
            for one in ("::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "0.0.0.0")
        ),
        *((one, True) for one in ("8.8.8.8", "2001:4860:4860::8888", "::ffff:8.8.8.8")),
    ],
)
def test_public_addresses(peer: str, expected: bool) -> None:
    assert hosts.is_public(peer) is expected


@pytest.mark.parametrize(
    ("fault", "limit", "text"),
    [
        ("hang", "STALL_S", "does not answer in time, tried 2 times"),
        ("stall", "STALL_S", "does not answer in time, tried 2 times"),
        ("drip", "TRY_S", "sends the file too slowly"),
        ("slow_head", "TRY_S", "sends the file too slowly"),
    ],
)
def test_no_server_holds_an_address_for_long(
    fault: str, limit: str, text: str, server: PictureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, limit, 1.2)
    fetcher = AddressFetcher(tmp_path)
    began = time.monotonic()
    found = failure(fetcher, f"{server.address}/{fault}/1.jpg")
    assert found == ("unreachable", f"127.0.0.1:{server.port} {text}")
    assert time.monotonic() - began < 6
    fetcher.close()


@pytest.mark.proof
@pytest.mark.parametrize(("fault", "most_s"), [("hang", 25), ("stall", 25), ("drip", 25)])
def test_the_limits_themselves(fault: str, most_s: float, server: PictureServer, tmp_path: Path) -> None:
    fetcher, began = AddressFetcher(tmp_path), time.monotonic()
    names = [f"{server.address}/{fault}/{number}.jpg" for number in range(200)]
    fetcher.announce(names, MOST)
    assert {failure(fetcher, name)[0] for name in names} == {"unreachable"}
    assert time.monotonic() - began < 2 * most_s, "200 of them take two rounds of 128"
    fetcher.close()


def test_hanging_addresses_do_not_hold_up_the_others(server: PictureServer, fetcher: AddressFetcher) -> None:
    """They come first, and are more than one host gets at once."""
    hanging = [f"{server.on('127.0.0.2')}/hang/{number}.jpg" for number in range(300)]
    good = [f"{server.address}/{number}.jpg" for number in range(500)]
    fetcher.announce([*hanging, *good], MOST)
    began = time.monotonic()
    assert [fetcher.fetch(address, MOST) for address in good] == [picture(number) for number in range(500)]
    assert time.monotonic() - began < 5
    assert server.told()[1][f"127.0.0.2:{server.port}"] == addresses.PER_HOST
    fetcher.forget()


def test_workers_share_what_a_host_gets_at_once(server: PictureServer, tmp_path: Path) -> None:
    fetcher = AddressFetcher(tmp_path, workers=32)
    names = [f"{server.on('127.0.0.3')}/together/4/{number}.jpg" for number in range(100)]
    fetcher.announce(names, MOST)
    assert all(fetcher.fetch(name, MOST) for name in names)
    assert server.told()[1][f"127.0.0.3:{server.port}"] == 4
    fetcher.close()


def test_a_busy_host_gets_fewer_requests_until_it_copes(
    server: PictureServer, fetcher: AddressFetcher
) -> None:
    """It answers four at once and refuses the others with 429 and Retry-After: 1."""
    names = [f"{server.on('127.0.0.4')}/limited/{number}.jpg" for number in range(100)]
    fetcher.announce(names, MOST)
    assert all(fetcher.fetch(name, MOST) for name in names)
    asked = server.asked
    assert max(asked[name.removeprefix(server.on("127.0.0.4"))] for name in names) <= BUSY_TRIES


def test_a_host_that_wants_a_long_rest_is_not_waited_for(
    server: PictureServer, fetcher: AddressFetcher
) -> None:
    address = server.on("127.0.0.5")
    found = failure(fetcher, f"{address}/429h/1.jpg")
    assert found == ("unreachable", f"127.0.0.5:{server.port} asks to come back in 3,600 s")
    before = server.asked
    assert failure(fetcher, f"{address}/2.jpg") == found
    assert server.asked == before, "nor is it asked for anything else"
    names = [f"{server.on('127.0.0.6')}/429h/{number}.jpg" for number in range(400)]
    fetcher.announce(names, MOST)
    assert {failure(fetcher, name)[0] for name in names} == {"unreachable"}
    assert (server.asked - before).total() <= addresses.PER_HOST, "those that waited for it are not sent"


@pytest.mark.parametrize(("limit", "value"), [("HOPELESS", 3), ("REST_S", 2.5)])
def test_a_host_that_is_always_busy_is_left_alone(
    limit: str, value: float, server: PictureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the 30 addresses would be tried eight times, one after another, with a second between."""
    monkeypatch.setattr(hosts, limit, value)
    fetcher, host = AddressFetcher(tmp_path, workers=64), f"127.0.0.7:{server.port}"
    names = [f"http://{host}/429/{number}.jpg" for number in range(30)]
    before, began = server.asked, time.monotonic()
    fetcher.announce(names, MOST)
    problems = {failure(fetcher, name) for name in names}
    assert problems == {("unreachable", f"{host} is busy: it refuses all requests for now")}
    assert time.monotonic() - began < 8 and (server.asked - before).total() <= 6
    fetcher.close()


def test_a_host_that_is_busy_now_and_then_is_not_left_alone(
    server: PictureServer, fetcher: AddressFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it answers in between that it does not have a file."""
    monkeypatch.setattr(hosts, "HOPELESS", 2)
    address = server.on("127.0.0.8")
    for number in range(3):
        fetcher.announce([f"{address}/until/1/429z/{number}.jpg"], MOST)
        assert failure(fetcher, f"{address}/404/{number}.jpg")[0] == "gone"
        assert fetcher.fetch(f"{address}/until/1/429z/{number}.jpg", MOST) == picture(number)


def test_a_busy_host_that_asks_for_no_rest_gets_one_that_grows(
    server: PictureServer, fetcher: AddressFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "PAUSE_S", 0.1)
    began = time.monotonic()
    assert fetcher.fetch(f"{server.on('127.0.0.9')}/until/4/429z/1.jpg", MOST) == picture(1)
    assert time.monotonic() - began > 0.1 + 0.2 + 0.4 + 0.8


def test_a_name_that_nobody_knows(
    server: PictureServer, fetcher: AddressFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network no name is known, so that counts only once another host has answered."""
    numbers = {"gone.example": socket.EAI_NONAME, "later.example": socket.EAI_AGAIN}
    honest = socket.getaddrinfo

    def look_up(host: str, *arguments: Any, **named: Any) -> Any:
        if host in numbers:
            raise socket.gaierror(numbers[host], "no")
        return honest(host, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    text = "is a name that DNS does not resolve, tried 3 times"
    assert failure(fetcher, "http://gone.example/1.jpg") == ("unreachable", f"gone.example {text}")
    fetcher.fetch(f"{server.address}/1.jpg", MOST)
    assert failure(fetcher, "http://gone.example/2.jpg") == (
        "gone",
        "gone.example is a name that DNS does not know",
    )
    assert failure(fetcher, "http://later.example/1.jpg") == ("unreachable", f"later.example {text}")


def test_no_secret_of_an_address_is_told(server: PictureServer, fetcher: AddressFetcher) -> None:
    address = server.address.replace("//", "//me:secret@")
    for path in ("404/1.jpg?token=secret", "503/1.jpg?token=secret", "loop/1.jpg?token=secret"):
        assert "secret" not in " ".join(failure(fetcher, f"{address}/{path}"))


def test_what_waits_beyond_memory_waits_on_the_disk(
    server: PictureServer, fetcher: AddressFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"IN_MEMORY": 20_000, "SEGMENT": 30_000, "HELD": 200_000, "LARGE": 5_100, "STARTED": 50}
    for name, size in sizes.items():
        monkeypatch.setattr(addresses, name, size)
    names = [f"{server.address}/{number}.jpg" for number in range(300)]
    fetcher.announce(names, MOST)
    time.sleep(1)
    assert fetcher._in_memory <= 20_000 < fetcher._held < 200_000 + 6_000 * 50
    assert [fetcher.fetch(name, MOST) for name in names] == [picture(number) for number in range(300)]
    assert (fetcher._held, fetcher._in_memory, fetcher._fetches) == (0, 0, {})


def test_an_address_of_several_samples_is_asked_for_once(
    server: PictureServer, fetcher: AddressFetcher
) -> None:
    address = f"{server.address}/1234.jpg"
    fetcher.announce([address] * 5, MOST)
    assert [fetcher.fetch(address, MOST) for _ in range(5)] == [picture(1234)] * 5
    assert server.asked["/1234.jpg"] == 1


@pytest.mark.parametrize("limit", ["IN_MEMORY", "LARGE"])
def test_a_full_disk_is_no_fault_of_an_address(
    limit: str, server: PictureServer, fetcher: AddressFetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, limit, 1)
    full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - the fetcher's
    monkeypatch.setattr(addresses.tempfile, "TemporaryFile", lambda *_, **__: full)
    with pytest.raises(OSError, match="No space left"):
        fetcher.fetch(f"{server.address}/1.jpg", MOST)


def test_a_process_with_hundreds_of_requests_under_way_ends_at_once(server: PictureServer) -> None:
    program = """
import sys, time
from tasks.core.remote.addresses import AddressFetcher
fetcher = AddressFetcher()
fetcher.announce([f"http://127.0.0.{host}:{sys.argv[1]}/hang/{n}.jpg" for n in range(90) for host in range(6, 9)], 1000)
time.sleep(1)
"""
    began = time.monotonic()
    command = [sys.executable, "-c", program, str(server.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert time.monotonic() - began < 8 and done.stderr == ""


def test_without_its_package_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"need the package aiohttp: pip install 'tarmac\[remote\]'"):
        AddressFetcher()
