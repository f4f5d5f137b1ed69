"""Reading from afar beside obstore's bare ranged GETs and beside s3fs, at as many requests in flight.

A web server and a bucket (moto's S3 server) answer after 20 ms, and one request in a hundred fails, as slow_store does
it. Large objects are read as a build and as the loader's two readers read them; a reader that keeps a copy stands beside
obstore with a file to write to. Small ones are read as a conversion reads images. Each measurement is a process of its
own, and the contenders take turns.

    .venv/bin/python -m tests.benchmarks.bench_remote [ROUNDS [MEGABYTES [SMALL]]]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests import s3
from tests.benchmarks import results, slow_store
from tests.benchmarks.bench_build import HERE
from tests.services import free_port, until
from tests.system.foreign_env import foreign_env

ROUNDS, MEGABYTES, SMALL = 5, 256, 2000
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


class Measured(NamedTuple):
    """Bytes, seconds and CPU seconds of a reader that has its client and one connection."""

    size: int
    seconds: float
    cpu: float

    @property
    def pace(self) -> float:
        """Megabytes per second."""
        return self.size / self.seconds / 1e6

    @property
    def cpu_ms(self) -> float:
        """Milliseconds of the reader's CPU per megabyte."""
        return self.cpu / self.size * 1e9


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


def measure(way: str, names: Sequence[str], known: dict[str, str]) -> Measured:
    urls = [f"{known.get('WEB', 's3:/')}/{BUCKET}/{name}" for name in names]
    program = [sys.executable, "-m", "tests.benchmarks.remote_ours"]
    if way not in OURS:
        program = [str(foreign_env("stores") / "python"), str(HERE / "remote_peers.py")]
    with tempfile.TemporaryDirectory(prefix="tarmac-remote-cache-") as place:
        environment = {**os.environ, **known, "TARMAC_CACHE": place}
        done = subprocess.run([*program, way, *urls], env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{way}: {done.stderr}")
    size, seconds, cpu = done.stdout.split()
    return Measured(int(size), float(seconds), float(cpu))


def compare(kind: str, ways: Sequence[str], names: Sequence[str], known: dict[str, str], rounds: int) -> None:
    taken: dict[str, list[Measured]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, measured in taken.items():
            asked = names[: -(-len(names) // 10)] if len(names) > SHARDS and way == "s3fs" else names
            measured.append(measure(way, asked, known))
    print(f"\n{kind}, {len(names):,} objects; load average {os.getloadavg()[0]:.1f}")
    medians = {
        way: sorted(measured, key=lambda one: one.seconds)[rounds // 2] for way, measured in taken.items()
    }
    for way, median in medians.items():
        speeds = [one.pace for one in taken[way]]
        cpu_ms = statistics.median(one.cpu_ms for one in taken[way])
        spread = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        objects = median.pace * 1e6 / SMALL_BYTES
        per_second = f", {objects:,.0f} objects/s" if len(names) > SHARDS else ""
        print(f"  {way:14} {median.pace:7,.0f} MB/s ({spread}), {cpu_ms:.2f} ms CPU/MB{per_second}")
    rows = {way: {"mb_per_s": one.pace, "cpu_ms": one.cpu_ms} for way, one in medians.items()}
    for mine, theirs, promised in PROMISES:
        if mine in medians and theirs in medians:
            ratio = medians[mine].pace / medians[theirs].pace
            if theirs.startswith("obstore"):
                rows[mine]["over_obstore"] = ratio
            cpu = medians[mine].cpu_ms / medians[theirs].cpu_ms
            verdict = "kept" if ratio >= promised else "NOT KEPT"
            print(f"  {mine} / {theirs}: {ratio:.2f} (its CPU x {cpu:.2f}), promised {promised}: {verdict}")
    results.save("remote", f"{kind}, {len(names):,} objects", rows, rounds)


def main(rounds: int, megabytes: int, small: int) -> None:
    foreign_env("stores")
    with tempfile.TemporaryDirectory(prefix="tarmac-remote-") as place:
        folder = Path(place) / "there"
        (folder / BUCKET).mkdir(parents=True)
        large = [f"{number}.tar" for number in range(SHARDS)]
        for name in large:
            (folder / BUCKET / name).write_bytes(os.urandom(megabytes << 20))
        files = [f"{number:05d}.jpg" for number in range(small)]
        for name in files:
            (folder / BUCKET / name).write_bytes(os.urandom(SMALL_BYTES))
        with far_away(folder, Path(place) / "log") as environments:
            for kind, known in environments.items():
                alone = measure("server", large, known)
                print(f"{kind}: the server alone gives {alone.pace:,.0f} MB/s")
                peers = [way for way in LARGE_WAYS if kind == "s3" or not way.startswith("s3fs")]
                compare(kind, peers, large, known, rounds)
                peers = [way for way in SMALL_WAYS if kind == "s3" or not way.startswith("s3fs")]
                compare(kind, peers, files, known, rounds)


if __name__ == "__main__":
    given = dict(enumerate(map(int, sys.argv[1:])))
    main(given.get(0, ROUNDS), given.get(1, MEGABYTES), given.get(2, SMALL))
