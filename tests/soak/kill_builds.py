"""Builds that are killed at random moments end as if nothing had happened.

An episode builds a dataset from nothing, changes its source and builds again, while SIGKILL falls at random
moments; then the last build may finish, and every file must be as in a build that nobody disturbed.
`python -m tests.soak.kill_builds 100` kills a hundred times; the test suite does it a few times.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
from tasks.dataset.version.layout import FRESH
from tests.dataset import raw

SAMPLES = 240
SHARD = {"samples": 8}
DEAD_S = 5.0
"""A build's children end within this time of their starter's death."""


def _table(folder: Path, seed: int) -> None:
    """Images with captions; another seed changes a tenth of them."""
    raw.pictures(folder, SAMPLES, side=24)
    if seed:
        for number in range(0, SAMPLES, 10):
            (folder / f"{number:04d}.png").write_bytes(raw.png(SAMPLES + number, side=24))


def _parquet(folder: Path, seed: int) -> None:
    """The same with the images' bytes in Parquet files."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(4):
        numbers = range(part, SAMPLES, 4)
        rows = {
            "key": [f"{number:04d}" for number in numbers],
            "image": [raw.png(SAMPLES + n if seed and n % 10 == 0 else n, side=24) for n in numbers],
            "caption": [f"picture {number}" for number in numbers],
        }
        pq.write_table(pa.table(rows), folder / f"{part}.parquet", row_group_size=20)


def _table_config(folder: Path, output: Path) -> Config:
    return raw.config(folder, output, workers=2, shard=SHARD)


def _parquet_config(folder: Path, output: Path) -> Config:
    source = {"kind": "table", "path": str(folder), "image": "image", "caption": "caption", "key": "key"}
    return raw.config(folder, output, workers=2, shard=SHARD, source=source)


SOURCES: Mapping[str, tuple[Callable[[Path, int], None], Callable[[Path, Path], Config]]] = {
    "files": (_table, _table_config),
    "containers": (_parquet, _parquet_config),
}


def build_and_publish(kind: str, folder: Path, output: Path) -> None:
    """What is killed."""
    config = SOURCES[kind][1](folder, output)
    result = build(config, accept_loss=True)
    versions.publish(output, result.version, config.dataset.keep)


def episode(kind: str, root: Path, rng: random.Random, kills: int = 5) -> int:
    """Kill each of two builds so often and compare; returns how many kills hit a living build."""
    write = SOURCES[kind][0]
    folder, output = root / "raw", root / "out"
    hits = 0
    for seed in (0, 1):
        write(folder, seed)
        build_and_publish(kind, folder, root / f"calm{seed}")
        calm = versions.current(root / f"calm{seed}")
        assert calm is not None
        shards = len(list(calm.glob("*/*.tar")))
        for _ in range(kills):
            hits += kill_build(kind, folder, output, rng.randrange(-1, shards), rng.uniform(0, 0.05))
        build_and_publish(kind, folder, output)
        killed = versions.current(output)
        assert killed is not None
        assert raw.contents(killed) == raw.contents(calm), f"{kind}: the killed build differs"
        # A write that was killed leaves a hidden file.
        left = sorted(path.name for path in output.iterdir() if not path.name.startswith("."))
        assert left == ["current", FRESH, "versions"], f"{kind}: {left} are left"
    return hits


def kill_build(kind: str, folder: Path, output: Path, shards: int, after_s: float = 0.0) -> bool:
    """Start a build and kill it a while after it has converted more than so many shards. Whether it was still
    at work."""
    process = _start(kind, folder, output)
    _wait_for_shards(process, output / "staging", shards)
    return sigkill(process, after_s)


def _wait_for_shards(process: subprocess.Popen[bytes], staging: Path, shards: int) -> None:
    """Until the build works, and has converted more than so many shards, or has ended."""
    while process.poll() is None:
        with suppress(FileNotFoundError):  # not made yet, or removed again
            if sum(name.endswith(".arrow") for name in os.listdir(staging)) > shards:
                return
        time.sleep(0.002)


def sigkill(process: subprocess.Popen[bytes], after_s: float) -> bool:
    """SIGKILL this process alone after a while; its workers must follow by themselves. Whether it was still at
    work."""
    time.sleep(after_s)
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        children = []
    was_alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=DEAD_S)
    assert not alive, f"{alive} outlived their starter"
    return was_alive


def _start(kind: str, folder: Path, output: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else "tests.soak.kill_builds"]
    command += [kind, str(folder), str(output)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()}, start_new_session=True)


def main(arguments: list[str]) -> None:
    if len(arguments) == 3:
        build_and_publish(arguments[0], Path(arguments[1]), Path(arguments[2]))
        return
    wanted, seed = int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else int(time.time())
    print(f"seed {seed}")
    rng = random.Random(seed)
    hits: dict[str, Any] = dict.fromkeys(SOURCES, 0)
    while sum(hits.values()) < wanted:
        kind = min(hits, key=lambda kind: hits[kind])
        root = Path(tempfile.mkdtemp(prefix="tarmac-soak-"))
        hits[kind] += episode(kind, root, rng)
        shutil.rmtree(root)
        print(f"{hits} kills, every dataset as in an undisturbed build", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
