"""Small trainings that stall, or do not, in ways that open_clip's trainer cannot be brought to.

`python -m tests.stalls.program KIND` runs the function of that name. Each is what people write: a Dataset, a
DataLoader, a loop that prints its steps.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

MODEL = torch.nn.Linear(256, 256)


class Numbers(Dataset):
    """Random rows; what happens at the row `at` is what the subclasses are about."""

    def __init__(self, rows: int = 1_000_000, at: int = 40) -> None:
        self.rows, self.at = rows, at

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        if row == self.at:
            self.happen()
        return torch.randn(256)

    def happen(self) -> None:
        pass


def loop(loader: Any, work: int = 200, pause_s: float = 0.0) -> None:
    """Train; a step of `work` multiplications takes some hundredths of a second."""
    for step, batch in enumerate(loader):
        for _ in range(work):
            batch = MODEL(batch).tanh()
        batch.sum().backward()
        if step % 10 == 0:
            print(f"step {step} loss {float(batch.sum()):.3f}", flush=True)
        time.sleep(pause_s)


def deadlock_at_fork() -> None:
    lock = threading.Lock()
    held = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            threading.Event().wait()

    class Locked(Numbers):
        def __getitem__(self, row: int) -> torch.Tensor:
            with lock:
                return torch.randn(256)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    print("starting", flush=True)
    loop(DataLoader(Locked(), 32, num_workers=2, multiprocessing_context="fork"))


def segfault() -> None:
    class Faulty(Numbers):
        def happen(self) -> None:
            ctypes.string_at(0)

    loop(DataLoader(Faulty(), 8, num_workers=2))


def killed() -> None:
    class Killed(Numbers):
        def happen(self) -> None:
            time.sleep(2)  # as who takes a batch from a process that is gone reports a refused connection
            os.kill(os.getpid(), signal.SIGKILL)

    loop(DataLoader(Killed(), 8, num_workers=2))


def raises() -> None:
    class Bad(Numbers):
        def happen(self) -> None:
            raise ValueError("cannot identify image file 'photos/000040.jpg'")

    loop(DataLoader(Bad(), 8, num_workers=2))


def retries() -> None:
    """A sample that always fails, and a loader that tries it again for ever."""
    bad = Path("000040.jpg")
    bad.write_bytes(bytes(1_000_000))

    class Retried(Numbers):
        def happen(self) -> None:
            from PIL import Image

            while True:
                try:
                    with bad.open("rb") as file:
                        for _ in range(10):
                            file.read(100_000)
                            time.sleep(0.01)
                        Image.open(file)
                    return
                except OSError:
                    continue

    loop(DataLoader(Retried(at=408), 8, num_workers=1))  # step 50 is the last one


def killed_unwatched(memory: str = "") -> None:
    """Workers of one's own, one of which is killed, and a rank that waits for its answer for ever."""
    import multiprocessing

    context = multiprocessing.get_context("fork")
    queue: Any = context.Queue()

    def work() -> None:
        if memory:
            Path(memory, "cgroup.procs").write_text(str(os.getpid()))
            hog = []
            while True:
                hog.append(bytearray(os.urandom(1 << 20)))
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    worker = context.Process(target=work)
    worker.start()
    print("waiting for the worker", flush=True)
    queue.get()


def shm_full() -> None:
    class Wide(Numbers):
        def __getitem__(self, row: int) -> torch.Tensor:
            return torch.randn(1 << 18)

    loop(DataLoader(Wide(), 32, num_workers=2))


def descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = []
    for step, batch in enumerate(DataLoader(Numbers(), 8, num_workers=2)):
        kept.append(batch)
        print("step", step, flush=True)


def truncated() -> None:
    import webdataset as wds

    data = wds.WebDataset("cut.tar", shardshuffle=False).decode("pilrgb").to_tuple("jpg", "txt")
    for step, _ in enumerate(DataLoader(data, batch_size=None, num_workers=1)):
        print("step", step, flush=True)


def uneven_ranks() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, steps = dist.get_rank(), 5 if dist.get_rank() else 8
    for step in range(steps):
        gradient = torch.ones(10)
        dist.all_reduce(gradient)
        print(f"rank {rank} step {step}", flush=True)
    validate(rank)


def validate(rank: int) -> None:
    import torch.distributed as dist

    print(f"rank {rank} ended its epoch", flush=True)
    time.sleep(2)
    dist.monitored_barrier() if rank == 0 else dist.barrier()


def even_ranks() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(1_000_000):
        gradient = MODEL(torch.randn(64, 256)).sum(0)
        dist.all_reduce(gradient)
        if step % 100 == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.01)


def tracker() -> None:
    import wandb

    wandb.init(project="stall", dir=".")
    print("step 1", flush=True)
    loop(DataLoader(Numbers(), 32, num_workers=1))


def tracked_epoch() -> Any:
    """A run whose server goes on answering up to here."""
    import wandb

    run = wandb.init(project="stall", dir=".")
    for step in range(20):
        run.log({"loss": 1 / (step + 1)})
        print("step", step, flush=True)
    print("the epoch ends", flush=True)
    while not Path("server_hangs").exists():
        time.sleep(0.1)
    return run


def tracker_at_the_end() -> None:
    tracked_epoch().finish()


def tracker_with_table() -> None:
    import wandb

    tracked_epoch().log({"rows": wandb.Table(columns=["row"], data=[[1], [2]])})


def offline_tracker() -> None:
    import wandb

    run = wandb.init(project="stall", dir=".", mode="offline")
    for step, batch in enumerate(DataLoader(Numbers(), 32, num_workers=1)):
        run.log({"loss": float(MODEL(batch).sum())})
        if step % 100 == 0:
            print(f"step {step}", flush=True)


def checkpoint(path: str) -> None:
    for step in range(3):
        print(f"step {step}", flush=True)
    print("saving", flush=True)
    torch.save({"weights": torch.randn(1 << 20)}, path)


def checkpoints() -> None:
    Path("checkpoints").mkdir(exist_ok=True)
    for step in range(1_000_000):
        MODEL(torch.randn(64, 256)).sum().backward()
        torch.save({"weights": torch.randn(1 << 22)}, "checkpoints/last.pt")
        print(f"step {step}", flush=True)


def forked() -> None:
    loop(DataLoader(Numbers(), 32, num_workers=2))


def spawned() -> None:
    loop(DataLoader(Numbers(), 32, num_workers=1, multiprocessing_context="spawn"))


def stream() -> None:
    import webdataset as wds

    data = (
        wds.WebDataset("train-000000.tar", shardshuffle=False)
        .decode("torchrgb")
        .to_tuple("jpg", "txt")
        .repeat()
    )
    for step, (image, _) in enumerate(DataLoader(data, batch_size=None, num_workers=1)):
        MODEL(image[0, :, :96].flatten()[:256]).sum().backward()
        if step % 100 == 0:
            print(f"step {step}", flush=True)


def download(url: str) -> None:
    from urllib.request import urlopen

    print("downloading", flush=True)
    with urlopen(url) as answer, open("weights.pt.incomplete", "wb") as file:
        while part := answer.read(1 << 14):
            file.write(part)


def forkserver() -> None:
    loop(DataLoader(Numbers(), 32, num_workers=1, multiprocessing_context="forkserver"))


def few_workers() -> None:
    """Bound by its loader: each row takes a while."""

    class Slow(Numbers):
        def __getitem__(self, row: int) -> torch.Tensor:
            time.sleep(0.01)
            return torch.randn(256)

    loop(DataLoader(Slow(), 16, num_workers=1), work=1)


def slow_first_batch() -> None:
    class Slow(Numbers):
        def __getitem__(self, row: int) -> torch.Tensor:
            until = time.monotonic() + 600
            while time.monotonic() < until:
                sum(range(10_000))
            return torch.randn(256)

    print("loading", flush=True)
    loop(DataLoader(Slow(), 16, num_workers=1))


def starting() -> None:
    print("building the model", flush=True)
    while True:
        torch.linalg.qr(torch.randn(256, 256))


def resting() -> None:
    print("step 1; waiting for the next file to train on", flush=True)
    while True:
        time.sleep(60)


def tqdm_bar() -> None:
    from tqdm import tqdm

    loop(tqdm(DataLoader(Numbers(), 32, num_workers=1)))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
