"""Reading from afar beside obstore's bare ranged GETs and beside s3fs, at as many requests in flight.

A web server and a bucket (moto's S3 server) answer after 20 ms, and one request in a hundred fails, as slow_store does
it. Large objects are read as a build and as the loader's two readers read them; a reader that keeps a copy stands beside
obstore with a file to write to. Small ones are read as a conversion reads images.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import s3
from tests.benchmarks import slow_store
from tests.benchmarks.harness import Benchmark, Case, Column, Command, Contestant, Promise, Row, Setup, times
from tests.services import free_port, until

KEYS = ("bytes", "s", "cpu_s")
SHARDS, SMALL_BYTES = 4, 30_000
BUCKET = "bucket"
LARGE_WAYS = ("open", "stream", "cached", "indexed", "obstore", "obstore_file", "s3fs", "s3fs_own")
SMALL_WAYS = ("small", "obstore_small", "s3fs", "s3fs_own_small")
OURS = ("open", "stream", "cached", "indexed", "small")
PROMISES = (
    ("open", "obstore", 0.9),
    ("stream", "obstore", 0.9),
    ("cached", "obstore_file", 0.9),
    ("indexed", "obstore_file", 0.9),
    ("small", "obstore_small", 0.9),
    ("open", "s3fs", 2.0),
    ("stream", "s3fs", 2.0),
    ("small", "s3fs", 2.0),
)
"""Ours, whose, and how many times its bytes per second."""


@contextmanager
def far_away(folder: Path, log: Path) -> Iterator[dict[str, dict[str, str]]]:
    """The folder on a web server and in a bucket: for each kind of address, the environment that reads it."""
    with ExitStack() as lasting:
        moto = lasting.enter_context(s3.moto_server(log))
        environments = {}
        for kind, arguments in (("http", []), ("s3", [moto])):
            port = free_port()
            command = [sys.executable, slow_store.__file__, port, folder, *arguments]
            for _ in range(slow_store.PROCESSES):
                process = subprocess.Popen([str(part) for part in command])
                lasting.callback(process.wait)
                lasting.callback(process.kill)
            until("the server's start", lambda port=port: s3._listens(port), 30)
            known = {**s3.environment(port), "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true"}
            environments[kind] = known if kind == "s3" else {"WEB": f"http://127.0.0.1:{port}"}
            environments[kind]["THERE"] = str(folder / BUCKET)
        os.environ.update(s3.environment(moto))
        s3.put(folder / BUCKET, BUCKET)
        for name in s3.environment(moto):
            del os.environ[name]
        yield environments


def reader(setup: Setup, way: str, names: Sequence[str], known: dict[str, str]) -> Contestant:
    urls = [f"{known.get('WEB', 's3:/')}/{BUCKET}/{name}" for name in names]

    def measured() -> Row:
        environment = {**known, "TARMAC_CACHE": str(setup.new_folder())}
        if way in OURS:
            words = [sys.executable, "-m", "tests.benchmarks.remote_ours", way, *urls]
            row = Command(words, KEYS, environment)()
        else:
            row = setup.peer("stores", "remote_peers", way, *urls, keys=KEYS, env=environment)()
        megabytes = row["bytes"] / 1e6
        return {"mb_per_s": megabytes / row["s"], "cpu_ms": row["cpu_s"] / megabytes * 1e3}

    return measured


def cases(setup: Setup) -> Iterator[Case]:
    folder = setup.new_folder()
    (folder / BUCKET).mkdir()
    large = {f"{number}.tar": setup.sized(256, 32) << 20 for number in range(SHARDS)}
    small = {f"{number:05d}.jpg": SMALL_BYTES for number in range(setup.sized(2000, 200))}
    for name, size in (large | small).items():
        (folder / BUCKET / name).write_bytes(os.urandom(size))
    with far_away(folder, setup.folder / "log") as environments:
        for kind, known in environments.items():
            for ways, names in ((LARGE_WAYS, [*large]), (SMALL_WAYS, [*small])):
                found = {}
                for way in ways:
                    if kind == "s3" or not way.startswith("s3fs"):
                        few = names[: -(-len(names) // 10)] if way == "s3fs" and names[0] in small else names
                        found[way] = reader(setup, way, few, known)
                yield Case(f"{kind}, {len(names):,} objects", found)


BENCHMARKS = (
    Benchmark(
        "remote",
        "Reading from afar",
        "A web server and a bucket that answer after 20 ms, and fail one request in a hundred; as many requests in "
        "flight for each. Large objects are read as a build reads them (open), by the streaming reader (stream), and "
        "into the node's cache, as a whole (cached) or for single samples (indexed). obstore gets the same ranges and "
        "drops them (obstore), or writes them to a file (obstore_file). s3fs opens and reads one object after the "
        "other (s3fs), or gets each by `cat` (s3fs_own). Small objects are read as a conversion reads images.",
        cases,
        (Column("mb_per_s", "MB/s"), Column("cpu_ms", "ms of CPU a MB", ".2f")),
        promises=[
            Promise(
                f"MB/s of {mine} over those of {theirs}", times("mb_per_s", mine, theirs), "at least", limit
            )
            for mine, theirs, limit in PROMISES
        ],
        packages=("aiohttp",),
        environments=("stores",),
        plot="mb_per_s",
    ),
)
