"""verify takes as much memory for ten times the shards and samples.

`python -m tests.soak.verify_memory 300 3000` makes a version of so many shards of 500 samples each, and
prints the peak of all processes of `verify`, at the default level with all cores and with one, and at
`quick`, for which the shards are small and ten a shard. The last must be within 10 % of the first.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.soak import many_shards

ALLOWED = 1.10
SAMPLES = {"default": 500, "quick": 10}
QUICK_SHARDS = 10 / 3
"""At `quick` that many times as many shards."""
_PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


def peak(version: Path, level: str, cores: str | None) -> tuple[int, float]:
    """The sum of the peaks of verify's processes in KiB, and its seconds; on these cores only if given."""
    command = [sys.executable, "-m", "tests.soak.verify_memory", "--verify", str(version), level]
    if cores is not None:
        command = ["taskset", "-c", cores, *command]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    children: dict[int, int] = {}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                children[child.pid] = max(children.get(child.pid, 0), _peak(child.pid))
            time.sleep(0.02)
        assert process.returncode == 0 and process.stdout is not None
        own, seconds = process.stdout.read().split()[-2:]
    return int(own) + sum(children.values()), float(seconds)


def _peak(pid: int) -> int:
    """What the system has noted as the most that the process ever had; getrusage would count in what its
    parent had when it started it."""
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _verify(version: Path, level: str) -> None:
    from tasks.dataset.verify.verifier import verify

    began = time.monotonic()
    report = verify(version, level)  # type: ignore[arg-type]
    assert report.ok, report.findings[:3]
    print(_peak(os.getpid()), time.monotonic() - began)


def measure(shards: list[int], level: str, cores: dict[str, str | None]) -> list[float]:
    """Prints the peaks; returns the growths from the first to the last."""
    peaks: dict[str, list[int]] = {name: [] for name in cores}
    for count in shards:
        folder = Path(tempfile.mkdtemp(prefix="tarmac-memory-"))
        version = many_shards.make(folder / "version", count, SAMPLES[level])
        for name, chosen in cores.items():
            most, seconds = peak(version, level, chosen)
            peaks[name].append(most)
            what = f"{count:>7,} shards, {count * SAMPLES[level]:>9,} samples, {level}, {name}"
            print(f"{what}: {most / 1024:,.0f} MiB, {seconds:.1f} s", flush=True)
        shutil.rmtree(folder)
    return [found[-1] / found[0] for found in peaks.values()]


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--verify"]:
        _verify(Path(arguments[1]), arguments[2])
        return
    shards = [int(argument) for argument in arguments] or [300, 3000]
    growths = measure(shards, "default", {"all cores": None, "one core": str(min(os.sched_getaffinity(0)))})
    growths += measure([round(count * QUICK_SHARDS) for count in shards], "quick", {"all cores": None})
    print(f"growth {', '.join(f'{growth:.3f}' for growth in growths)}, allowed {ALLOWED}")
    if max(growths) > ALLOWED:
        sys.exit("it grows")


if __name__ == "__main__":
    main(sys.argv[1:])
