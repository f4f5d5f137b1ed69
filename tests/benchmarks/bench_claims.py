"""Experiments that decide what reports of stuck trainings claim; docs/claims.md draws the conclusions.

A measurement is a process of its own that has done nothing before it. It is forked from a server that has imported the
libraries, as forty contestants would otherwise spend most of their minutes on imports.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from tests.benchmarks.claims_experiments import (
    PATIENCE_S,
    THEIRS,
    Buffer,
    first_batch,
    from_afar,
    hung_server,
    kept_batches,
    lock_at_fork,
    logging_calls,
    no_captions,
    pinned,
    small_shm,
    throughput,
    waits,
)
from tests.benchmarks.harness import Benchmark, Case, Column, Contestant, Row, Setup
from tests.stalls.open_clip import write_shards

SIDE, SAMPLES, SHARDS = 160, 500, 8
PIPE = """import sys, time
began, sent, rate = time.monotonic(), 0, float(sys.argv[2])
with open(sys.argv[1], "rb") as file:
    while part := file.read(65536):
        sys.stdout.buffer.write(part)
        sent += len(part)
        time.sleep(max(0, sent / rate - (time.monotonic() - began)))
"""


def fresh(function: Callable[..., Row], *arguments: Any) -> Contestant:
    """The function in a new process, with a process group of its own, so that all it starts ends with it."""

    def measured() -> Row:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["open_clip_train.data", "wandb", __name__])
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_measured, args=(theirs, function, arguments))
        process.start()
        theirs.close()
        try:
            if not ours.poll(PATIENCE_S):
                raise TimeoutError(f"{function.__name__}{arguments} gave nothing within {PATIENCE_S} s")
            found = ours.recv()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
        if isinstance(found, Exception):
            raise found
        return dict(found)

    return measured


def _measured(to: Connection, function: Callable[..., Row], arguments: tuple[Any, ...]) -> None:
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    multiprocessing.set_start_method("fork", force=True)
    try:
        to.send(function(*arguments))
    except Exception as error:  # noqa: BLE001 - who asked raises it
        to.send(RuntimeError(f"{type(error).__name__}: {error}"))


def cases(setup: Setup) -> Iterator[Case]:
    root = setup.new_folder()
    near = write_shards(root / "shards", shards=SHARDS, samples=SAMPLES, side=SIDE)
    bare = write_shards(root / "bare", ("jpg", "json"), shards=2, samples=SAMPLES, side=SIDE)
    size = sum(path.stat().st_size for path in (root / "bare").iterdir())
    (root / "slow.py").write_text(PIPE)
    far = f"pipe:{sys.executable} -S {root}/slow.py {near} 4000000"
    every = [*experiments(near, far, bare, size, str(root)).items()]
    for name, contestants in every[: setup.sized(len(every), 2)]:
        yield Case(name, {who: fresh(*call) for who, call in contestants.items()})


def experiments(
    near: str, far: str, bare: str, size: int, folder: str
) -> dict[str, dict[str, tuple[Any, ...]]]:
    """By case and contestant a function and its arguments."""
    small, theirs = Buffer(100, 100), "5,000, starts at 1,000 (open_clip)"
    return {
        "Shuffle buffer, local files": {
            "100": (first_batch, near, small, False),
            theirs: (first_batch, near, THEIRS, False),
            "10,000, starts at 1,000": (first_batch, near, Buffer(10_000, 1000), False),
            "10,000, starts when full": (first_batch, near, Buffer(10_000, 10_000), False),
        },
        "Shuffle buffer, 4 MB/s": {
            "100": (first_batch, far, small, True),
            "5,000, starts at 100": (first_batch, far, Buffer(5000, 100), True),
            theirs: (first_batch, far, THEIRS, True),
        },
        "No sample has a caption": {
            "buffer of 100": (no_captions, bare, size, 1, small),
            "buffer of 5,000": (no_captions, bare, size, 1, THEIRS),
            "buffer of 5,000, no workers": (no_captions, bare, size, 0, THEIRS),
        },
        "Workers, decoding on two cores": {counted(n): (throughput, near, n) for n in (0, 1, 2, 4, 8)},
        "Workers, waiting 10 ms per sample": {counted(n): (from_afar, n) for n in (1, 2, 8)},
        "A lock that was held at the fork": {
            "2 workers by fork": (lock_at_fork, 2, "fork"),
            "no workers": (lock_at_fork, 0, None),
            "2 workers by forkserver": (lock_at_fork, 2, "forkserver"),
        },
        "Size of /dev/shm": {
            "64 MB, batch of 16": (small_shm, 64, 16),
            "64 MB, batch of 128": (small_shm, 64, 128),
            "1,024 MB, batch of 128": (small_shm, 1024, 128),
        },
        "A list keeps up to 1,000 batches": {
            "file_descriptor, 256 files": (kept_batches, "file_descriptor", 256),
            "file_descriptor, 4,096 files": (kept_batches, "file_descriptor", 4096),
            "file_system, 256 files": (kept_batches, "file_system", 256),
            "copies of them, 256 files": (kept_batches, "file_descriptor", 256, True),
        },
        "pin_memory without a GPU": {str(is_pinned): (pinned, is_pinned) for is_pinned in (False, True)},
        "prefetch_factor, steps of 30 ms": {
            f"{name}, prefetch {prefetch}": (waits, *seconds, prefetch)
            for name, seconds in {
                "24.5 ms on average in bursts": (0.01, 0.3),
                "40 ms each": (0.04, 0.04),
            }.items()
            for prefetch in (2, 16)
        },
        "wandb's calls": {
            "log, commit=True": (logging_calls, folder, "commit"),
            "log, commit=False": (logging_calls, folder, "hold"),
            "log, step=": (logging_calls, folder, "step"),
            "log of a picture": (logging_calls, folder, "picture"),
            "log, commit=True, server hangs": (hung_server, folder, "commit"),
            "log of a table, server hangs": (hung_server, folder, "table"),
            "finish(), server hangs": (hung_server, folder, "finish"),
        },
    }


def counted(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


BENCHMARKS = [
    Benchmark(
        "claims",
        "Claims about stuck trainings",
        "What common advice does, each on the library that it is about; [claims.md](claims.md) draws the conclusions.",
        cases,
        (
            Column("first_s", "first batch, s", ".2f"),
            Column("batches", "batches", ",g"),
            Column("passes", "times all was read", ".1f"),
            Column("rate", "samples/s"),
            Column("held_mb", "workers hold, MB"),
            Column("shm_mb", "used of /dev/shm, MB"),
            Column("error_s", "error after, s", ".2f"),
            Column("waiting", "waiting, %", ".1f"),
            Column("call_us", "a call, µs", ",.0f"),
            Column("longest_ms", "longest call, ms", ",.1f"),
        ),
        packages=("open_clip_torch", "webdataset", "torch", "wandb"),
        is_warm=False,
    )
]
