"""What others say of the very same trainings: `python -m tests.soak.rivals [CHECKOUT]`.

`CHECKOUT` is a checkout of github.com/NVIDIA/nvidia-resiliency-ext, whose restart agent reads the logs of the fault
pool here without its language model. torch's debug server is started in the ranks that hang, and asked for their
stacks and for its flight recorder. py-spy's answers stand in the recorded observations. None of them gives a code,
so that is printed which they could be right with: the line they call the cause, the ranks they miss, the frame.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.services import free_port
from tests.stalls import pool
from tests.stalls.contract import PATIENCE_S, Training
from tests.stalls.record import RECORDS

AGENT = "nvidia_resiliency_ext.attribution.restart_agent.cli"


def logs(folder: Path) -> Iterator[tuple[str, int, Path]]:
    """The fault, its rank and the log of each training of the pool that ends."""
    for fault, codes, _ in pool.FAULTS:
        for rank in pool.AT if codes in (pool.GONE, pool.FAILED) else ():
            place = folder / f"{fault}-{rank}"
            place.mkdir()
            training = pool.faulty(place, fault, rank, is_end=True)
            training.wait_until_ready()
            training.end()
            yield fault, rank, training.log


def restart_agent(checkout: Path, folder: Path) -> None:
    right = total = 0
    for fault, rank, log in logs(folder):
        out = folder / "answer.json"
        subprocess.run(
            [
                sys.executable,
                "-m",
                AGENT,
                str(log),
                "--job-id",
                "1",
                "--disable-l1",
                "--result-json",
                str(out),
            ],
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE_S,
        )
        found = json.loads(out.read_text())["evidence"]
        quotes = [one["quote"] for one in found if "primary_failure" in one["supports"]]
        is_right = any(f"[rank{rank}]" in one or f"rank      : {rank} " in one for one in quotes)
        right, total = right + is_right, total + 1
        print(f"restart agent: {fault} of rank {rank}: {quotes[0][:70] if quotes else 'nothing'}", flush=True)
    print(f"restart agent: the rank in {right} of {total}", flush=True)


def debug_server(folder: Path) -> None:
    for fault, codes, _ in pool.FAULTS:
        for rank in () if codes in (pool.GONE, pool.FAILED) else pool.AT:
            place, port = folder / f"{fault}-{rank}", free_port()
            place.mkdir()
            env = {pool.DEBUG_PORT: str(port), "TORCH_FR_BUFFER_SIZE": "2000"}
            training = pool.faulty(place, fault, rank, is_end=False, **env)
            print(f"debug server: {fault} of rank {rank}: {_asked(training, port)}", flush=True)


def _asked(training: Training, port: int) -> str:
    """The ranks that did not answer, and whether the flight recorder's page did."""
    try:
        training.wait_until_ready()
        try:
            page = urlopen(f"http://localhost:{port}/stacks", timeout=60).read().decode()
            text = html.unescape(re.sub("<[^>]+>", "", page))
            silent = re.findall(r"Rank (\d+):[^\n]*\s+Failed to fetch", text)
            stacks = f"no answer of rank {', '.join(silent)}" if silent else "all ranks answer"
        except OSError as error:
            stacks = f"stacks: {error}"
        try:
            urlopen(f"http://localhost:{port}/fr_trace", timeout=60)
            recorder = "the flight recorder answers"
        except (HTTPError, OSError) as error:
            recorder = f"flight recorder: {error}"
        return f"{stacks}; {recorder}"
    finally:
        training.end()


def py_spy() -> None:
    frames: Counter[str] = Counter()
    for path in RECORDS.glob("*.json"):
        seen = json.loads(path.read_text())
        ranks = [one for one in seen["processes"] if one["role"] == "rank" and one["stack"]]
        if seen["codes"] and ranks:
            frames[ranks[0]["stack"][0]] += 1
    for frame, count in frames.most_common(3):
        print(f"py-spy: the innermost frame of the rank is {frame} in {count} of {frames.total()} stalls")


def main(checkout: str | None = None) -> None:
    py_spy()
    with tempfile.TemporaryDirectory(prefix="rivals-") as folder:
        debug_server(Path(folder))
        if checkout is not None:
            restart_agent(Path(checkout), Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])
