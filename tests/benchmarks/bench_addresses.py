"""A table of addresses beside img2dataset: at as many requests at once, from the same server on this machine.

The server answers after 20 ms, under sixteen names, as a table's addresses lie on many hosts. The second measure
has 10 % of addresses that never answer: each costs a wait, which must not add up. img2dataset gives such an address
up after 10 s and forgets it, unless it is told to retry; Tarmac tries it twice and accounts for it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tasks.core.remote.addresses import IN_FLIGHT
from tasks.dataset.building.builder import build
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, times
from tests.dataset import raw
from tests.picture_server import LATENCY_S, PictureServer, picture_server

WORKERS, HOSTS = 2, 16


def table(folder: Path, server: PictureServer, images: int, hang_every: int) -> Path:
    def address(number: int) -> str:
        hangs = "hang/" if hang_every and number % hang_every == 0 else ""
        return f"{server.on(f'127.0.0.{1 + number % HOSTS}')}/{hangs}{number}.jpg"

    return raw.write_table(folder, [(address(n), f"picture {n}", "x") for n in range(images)])


def ours(path: str, out: str) -> Row:
    config = raw.config(
        Path(path).parent, Path(out), WORKERS, shard={"samples": 500}, splits={}, reject_budget=0.5
    )
    began = time.perf_counter()
    accepted = build(config).accepted
    return rated(time.perf_counter() - began, accepted)


def rated(seconds: float, images: float) -> Row:
    return {"images_per_s": images / seconds, "s": seconds, "images": images}


def served(images: int, hang_every: int, contestant: Callable[[Path, Path], Row]) -> Row:
    """A measurement with a server of its own."""
    with picture_server(LATENCY_S) as server, tempfile.TemporaryDirectory() as folder:
        return contestant(table(Path(folder) / "raw", server, images, hang_every), Path(folder) / "out")


def cases(setup: Setup) -> Iterator[Case]:
    def tarmac(path: Path, out: Path) -> Row:
        return call(ours, path, out)()

    def peer(retries: int, path: Path, out: Path) -> Row:
        quiet = {"NO_ALBUMENTATIONS_UPDATE": "1"}
        words = ("addresses_peer", path, out, WORKERS, IN_FLIGHT, retries)
        found = setup.peer("img2dataset", *words, keys=("s", "images"), env=quiet)()
        return rated(found["s"], found["images"])

    images = setup.sized(5000, 500)
    for name, hang_every, peers in (
        ("all addresses answer", 0, {"img2dataset": 0}),
        ("one in ten never answers", 10, {"img2dataset, one try": 0, "img2dataset, two tries": 1}),
    )[: setup.sized(2, 1)]:
        ways = {"tarmac": tarmac, **{who: partial(peer, retries) for who, retries in peers.items()}}
        yield Case(name, {who: partial(served, images, hang_every, way) for who, way in ways.items()})


BENCHMARKS = (
    Benchmark(
        "addresses",
        "Downloading a table of addresses",
        "5,000 pictures of a table, from a server on this machine that answers after 20 ms, under sixteen names, beside "
        "img2dataset with as many requests at once. img2dataset gives up an address after 10 s and forgets it, unless it "
        "is told to retry; Tarmac tries each twice and accounts for it.",
        cases,
        (Column("images_per_s", "images/s"), Column("s", "s", ".1f"), Column("images", "images")),
        promises=(
            Promise(
                "images/s over img2dataset's",
                times("images_per_s", "tarmac", "img2dataset"),
                "at least",
                1.0,
                cases=("all addresses answer",),
            ),
        ),
        packages=("aiohttp", "pillow"),
        environments=("img2dataset",),
        ratio="images_per_s",
        is_warm=False,
    ),
)
