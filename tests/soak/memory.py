"""The memory of a build does not grow with the number of samples.

`python -m tests.soak.memory 10000 1000000` builds tables of so many rows, each in a process of its own, and
prints the peak of the building process and of its largest worker. The last must be within 10 % of the first.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.dataset import raw

ALLOWED = 1.10


def peak(rows: int) -> tuple[int, int]:
    """Peak resident KiB of the building process and of its largest worker, for a table of so many rows."""
    folder = Path(tempfile.mkdtemp(prefix="tarmac-memory-"))
    command = [sys.executable, "-m", "tests.soak.memory", "--build", str(folder), str(rows)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    worker = 0
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            worker = max([worker, *map(_resident, psutil.Process(process.pid).children(recursive=True))])
            time.sleep(0.1)
        assert process.returncode == 0 and process.stdout is not None
        own = int(process.stdout.read().split()[-1])
    shutil.rmtree(folder)
    return own, worker


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss) // 1024
    except psutil.NoSuchProcess:
        return 0


def _build(folder: Path, rows: int) -> None:
    from tasks.dataset.building.builder import build

    there = folder / "raw"
    there.mkdir()
    (there / "a.png").write_bytes(raw.png(1, side=8))
    with (there / "captions.csv").open("w") as file:
        file.write("file,caption,key\n")
        for number in range(rows):
            file.write(f"a.png,picture {number},k{number:08d}\n")
    source = {
        "kind": "table",
        "path": str(there / "captions.csv"),
        "image": "file",
        "caption": "caption",
        "key": "key",
    }
    result = build(raw.config(folder, folder / "out", workers=2, shard={"samples": 256}, source=source))
    assert result.accepted == rows
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main(arguments: list[str]) -> None:
    if arguments[0] == "--build":
        _build(Path(arguments[1]), int(arguments[2]))
        return
    peaks = [(int(rows), *peak(int(rows))) for rows in arguments]
    for rows, own, worker in peaks:
        print(f"{rows:>12,} rows: build {own / 1024:,.0f} MiB, largest worker {worker / 1024:,.0f} MiB")
    growth = peaks[-1][1] / peaks[0][1]
    print(f"growth {growth:.3f}, allowed {ALLOWED}")
    assert growth <= ALLOWED


if __name__ == "__main__":
    main(sys.argv[1:])
