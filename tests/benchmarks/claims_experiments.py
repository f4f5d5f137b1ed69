"""The experiments behind docs/claims.md: each is a function that runs in a process of its own and returns what it measured.

Each runs the library that the claim is about: open_clip's own loader, torch's DataLoader, wandb's client. A sleep takes
the place of a disk, a network or a GPU, and leaves the cores free as these do.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import subprocess
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import psutil

from tests.benchmarks.harness import Row

LIMIT_S = 2.0
"""How long a measurement waits for what never comes."""
RATE_S = 1.5
"""How long batches are counted for a rate."""
PATIENCE_S = 60.0
BATCH = 32
STEP_S = 0.03
LOCK = threading.Lock()
NEW_MOUNTS, PRIVATE = 0x20000, 0x44000
"""CLONE_NEWNS, and MS_REC | MS_PRIVATE."""


def within(limit_s: float, work: Callable[[], Any]) -> float:
    """How long the work took, at most the limit; it goes on in its thread after that."""
    began = time.perf_counter()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    return time.perf_counter() - began


def rate_of(batches: Iterator[Any], size: int, skip: int = 0) -> float:
    """Samples per second; the first batches that are skipped lay ready."""
    for _ in range(skip):
        next(batches)
    began, count = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < RATE_S:
        next(batches)
        count += size
    return count / taken


class Buffer(NamedTuple):
    """open_clip's shuffle buffer: how many samples it holds, and how many it waits for at its start."""

    size: int
    initial: int


THEIRS = Buffer(5000, 1000)
"""What open_clip 3.3.0 takes."""


def trainer_loader(shards: str, workers: int, buffer: Buffer, is_resampled: bool = True) -> Any:
    """What `open_clip_train.main` makes of these arguments; the sizes of its buffer are constants there."""
    import open_clip
    import torch
    from open_clip_train import data

    torch.set_num_threads(1)
    data._SAMPLE_SHUFFLE_SIZE, data._SAMPLE_SHUFFLE_INITIAL = buffer
    arguments = Namespace(
        train_data=shards,
        train_data_upsampling_factors=None,
        train_num_samples=10_000_000,
        dataset_resampled=is_resampled,
        seed=0,
        batch_size=BATCH,
        workers=workers,
        world_size=1,
    )
    transform = open_clip.image_transform(224, is_train=True)
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    return data.get_wds_dataset(arguments, transform, True, tokenizer=tokenizer).dataloader


def first_batch(shards: str, buffer: Buffer, is_far: bool) -> Row:
    loader = trainer_loader(shards, 1, buffer)
    began = time.perf_counter()
    batches = iter(loader)
    next(batches)
    first_s = time.perf_counter() - began
    return {"first_s": first_s} | ({"rate": rate_of(batches, BATCH)} if is_far else {"held_mb": held_mb()})


def held_mb() -> float:
    """What the workers hold for themselves; pages that they share with others do not count."""
    return float(sum(one.memory_full_info().uss for one in psutil.Process().children())) / 1e6


def no_captions(shards: str, size: int, workers: int, buffer: Buffer) -> Row:
    """How often the trainer's loader reads all of the data within the limit, and how many batches it gives."""
    loader, batches = trainer_loader(shards, workers, buffer, is_resampled=False), []
    own = psutil.Process()
    before = own.io_counters().read_chars
    within(LIMIT_S, lambda: batches.append(next(iter(loader))))
    readers = own.children() if workers else [own]
    read = sum(one.io_counters().read_chars for one in readers) - (0 if workers else before)
    return {"batches": len(batches), "passes": read / size}


def throughput(shards: str, workers: int) -> Row:
    batches = iter(trainer_loader(shards, workers, THEIRS))
    return {"rate": rate_of(batches, BATCH, 2 * workers + 1), "held_mb": held_mb() if workers else 0.0}


class Rows:
    """`wait_s` is what a sample waits for; `work` passes of tanh are what a core does for it."""

    def __init__(self, shape: tuple[int, ...] = (256,), wait_s: float = 0.0, work: int = 0) -> None:
        self.shape, self.wait_s, self.work = shape, wait_s, work

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, row: int) -> Any:
        import torch

        with LOCK:
            pass
        time.sleep(self.wait_s)
        sample = torch.full(self.shape, 0.5)
        for _ in range(self.work):
            sample = sample.tanh()
        return sample


class Bursts:
    """Batches that come one by one: each takes `usual_s`, every twentieth `rare_s`."""

    def __init__(self, usual_s: float, rare_s: float) -> None:
        self.usual_s, self.rare_s = usual_s, rare_s

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, row: int) -> int:
        time.sleep(self.rare_s if row % 20 == 19 else self.usual_s)
        return row


def torch_loader(rows: Any, size: int | None, workers: int, **options: Any) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    return iter(DataLoader(rows, size, num_workers=workers, **options))


def from_afar(workers: int) -> Row:
    return {"rate": rate_of(torch_loader(Rows(wait_s=0.01), 16, workers), 16, workers)}


def lock_at_fork(workers: int, start: str | None) -> Row:
    """A thread holds a lock that samples need, for a moment in which the workers are started."""
    got: list[Any] = []
    taken = threading.Event()

    def hold() -> None:
        with LOCK:
            taken.set()
            time.sleep(0.3)

    threading.Thread(target=hold, daemon=True).start()
    taken.wait()
    options = {"multiprocessing_context": start} if start else {}
    batches = torch_loader(Rows((100_000,), work=10), 16, workers, **options)
    within(LIMIT_S if start == "fork" else PATIENCE_S / 2, lambda: got.append(next(batches)))
    return {"batches": len(got), "rate": rate_of(batches, 16) if got else 0.0}


def small_shm(size_mb: int, batch: int) -> Row:
    """Pictures of 224 pixels in batches, by two workers, where /dev/shm has this size."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS) or libc.mount(b"none", b"/", None, PRIVATE, None):
        raise PermissionError("mounting a /dev/shm of one's own takes root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", "/dev/shm"], check=True)
    began, most, given = time.perf_counter(), 0, 0
    try:
        batches = torch_loader(Rows((3, 224, 224)), batch, 2)
        while given < 20:
            next(batches)
            given += 1
            space = os.statvfs("/dev/shm")
            most = max(most, (space.f_blocks - space.f_bfree) * space.f_frsize)
    except RuntimeError:
        return {"batches": given, "error_s": time.perf_counter() - began}
    return {"batches": given, "shm_mb": most / 1e6}


def kept_batches(strategy: str, files: int, is_copied: bool = False) -> Row:
    """Batches that a list keeps, as who collects outputs does, until the process has no file left to open."""
    import torch

    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    torch.multiprocessing.set_sharing_strategy(strategy)
    kept: list[Any] = []
    with suppress(RuntimeError, OSError):
        batches = torch_loader(Rows(), 4, 1)
        while len(kept) < 1000:
            batch = next(batches)
            kept.append(batch.clone() if is_copied else batch)
    return {"batches": len(kept)}


def pinned(is_pinned: bool) -> Row:
    return {"rate": rate_of(torch_loader(Rows((3, 224, 224)), 16, 2, pin_memory=is_pinned), 16, 8)}


def waits(usual_s: float, rare_s: float, prefetch: int) -> Row:
    """The share of its time for which a training waits."""
    batches = torch_loader(Bursts(usual_s, rare_s), None, 1, prefetch_factor=prefetch)
    next(batches)
    waited, began = 0.0, time.perf_counter()
    for _ in range(60):
        time.sleep(STEP_S)
        before = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - before
    return {"waiting": 100 * waited / (time.perf_counter() - began)}


def calls(call: Callable[[int], Any], times: int) -> Row:
    """The median of calls, and the longest, without the first twenty."""
    taken = []
    for step in range(times):
        before = time.perf_counter()
        call(step)
        taken.append(time.perf_counter() - before)
    return {"call_us": statistics.median(taken[20:]) * 1e6, "longest_ms": max(taken[20:]) * 1e3}


def logging_calls(folder: str, kind: str) -> Row:
    """Calls that log ten numbers, or a picture, of a run that is not uploaded."""
    import numpy
    import wandb

    run = wandb.init(project="claims", dir=folder, mode="offline", settings=wandb.Settings(silent=True))
    values = {f"train/value_{number}": 0.5 for number in range(10)}
    if kind == "picture":
        picture = numpy.random.default_rng(0).integers(0, 256, (224, 224, 3), numpy.uint8)
        return calls(lambda step: run.log({"picture": wandb.Image(picture)}), 60)
    if kind == "step":
        return calls(lambda step: run.log(values, step=step), 600)
    return calls(lambda step: run.log(values, commit=kind == "commit"), 600)


def hung_server(folder: str, kind: str) -> Row:
    """Calls of a run that is uploaded, to a server that takes every request and answers none any more."""
    import wandb

    from tests.supervision.tracking import wandb_server

    with wandb_server.serving() as server:
        os.environ |= {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40}
        run = wandb.init(project="claims", dir=folder, settings=wandb.Settings(silent=True))
        run.log({"loss": 1.0})
        server.answers.clear()
        if kind == "commit":
            return calls(lambda step: run.log({"loss": 0.5}, commit=True), 600)
        table = wandb.Table(columns=["row"], data=[[1], [2]])
        end = run.finish if kind == "finish" else lambda: run.log({"rows": table})
        return {"longest_ms": within(LIMIT_S, end) * 1e3}
