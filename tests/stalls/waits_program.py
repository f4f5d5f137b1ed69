"""Small trainings that wait for something outside of their loader, or whose pipeline drops everything.

`python -m tests.stalls.waits_program KIND` runs the function of that name. Each kind of wait is produced by three
libraries or ways of writing it; the rules were written on two of them, and the third, whose name ends in
`_held_out`, was only scored.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import queue
import random
import signal
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.stalls.program import MODEL, Numbers, loop


def steps(count: int = 20) -> None:
    """Train for some steps."""
    for step in range(count):
        MODEL(torch.randn(64, 256)).sum().backward()
        print(f"step {step} loss 0.5", flush=True)


# --- asks its user


def asks() -> None:
    steps()
    input("overwrite the last run? [y/N] ")


def debugger() -> None:
    steps()
    breakpoint()
    steps()


def token_held_out() -> None:
    from huggingface_hub import login

    steps()
    login()


# --- waits for a file's lock


def flock() -> None:
    steps()
    with Path("cache.lock").open("a") as file:
        print("preparing the cache", flush=True)
        fcntl.flock(file, fcntl.LOCK_EX)


def file_lock() -> None:
    import filelock

    steps()
    print("preparing the cache", flush=True)
    with filelock.FileLock("cache.lock"):
        pass


def datasets_lock_held_out() -> None:
    """The cache of a table that another process builds."""
    import datasets

    if not Path("rows.jsonl").exists():
        Path("rows.jsonl").write_text("".join(json.dumps({"row": row}) + "\n" for row in range(10)))
    print("preparing the cache", flush=True)
    datasets.load_dataset("json", data_files="rows.jsonl", cache_dir="cache")


# --- ranks that need each other


def joins() -> None:
    import torch.distributed as dist

    print("joining", flush=True)
    dist.init_process_group("gloo")


def all_reduces() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(1_000_000):
        dist.all_reduce(torch.ones(10))
        print(f"rank {dist.get_rank()} step {step}", flush=True)
        time.sleep(0.02)


def ddp() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    for step in range(1_000_000):
        model(torch.randn(8, 256)).sum().backward()
        print(f"rank {dist.get_rank()} step {step}", flush=True)
        time.sleep(0.02)


def spawned_ranks_held_out() -> None:
    """Ranks that torch.multiprocessing starts, without a launcher."""
    import torch.multiprocessing as mp

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(random.randrange(20000, 30000))}
    mp.spawn(_spawned, nprocs=2)


def _spawned(rank: int) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=rank, world_size=2)
    for step in range(1_000_000):
        dist.all_reduce(torch.ones(10))
        print(f"rank {rank} step {step}", flush=True)
        time.sleep(0.02)


def one_rank_asks() -> None:
    """Rank 1 asks; the others are in a collective."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(10))
    print(f"rank {dist.get_rank()} step 0", flush=True)
    if dist.get_rank() == 1:
        input("continue? [y/N] ")
    dist.all_reduce(torch.ones(10))


def one_rank_prepares() -> None:
    """Rank 0 prepares data for as long as anybody looks, and the others wait at a barrier."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    print("step 0", flush=True)
    if dist.get_rank() == 0:
        rows = 0
        while True:
            rows += sum(range(10_000)) > 0
            with Path("prepared.txt").open("a") as file:
                file.write(f"{rows}\n")
            time.sleep(0.01)
    dist.barrier()


def one_rank_validates() -> None:
    _validated_by(evaluate)


def one_rank_validates_held_out() -> None:
    _validated_by(Trainer().validation_loop)


def evaluate() -> None:
    while True:
        MODEL(torch.randn(64, 256)).sum()


class Trainer:
    def validation_loop(self) -> None:
        evaluate()


def _validated_by(function: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    print("step 0", flush=True)
    if dist.get_rank() == 0:
        function()
    dist.barrier()


# --- a producer that is dead


def dead_thread() -> None:
    batches: queue.Queue[int] = queue.Queue()

    def produce() -> None:
        for step in range(20):
            batches.put(step)
        raise ValueError("cannot read photos/000021.jpg")

    threading.Thread(target=produce, name="prefetch").start()
    while True:
        print("step", batches.get(), flush=True)


def dead_process() -> None:
    import multiprocessing

    context = multiprocessing.get_context("fork")
    batches: Any = context.Queue()

    def produce() -> None:
        for step in range(20):
            batches.put(step)

    producer = context.Process(target=produce)
    producer.start()
    while True:
        print("step", batches.get(), flush=True)


def dead_pool_held_out() -> None:
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        for step in range(20):
            print("step", pool.apply(abs, (step,)), flush=True)
        pool.apply(_die)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- computes, and yields nothing


def looping() -> None:
    class Endless(Numbers):
        def happen(self) -> None:
            number = 0
            while number >= 0:
                number += 1

    loop(DataLoader(Endless(), 8, num_workers=1))


class Generated(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            if (row := torch.randn(256)).mean() > 10:
                yield row


def looping_iterable() -> None:
    print("starting", flush=True)
    loop(DataLoader(Generated(), 8, num_workers=2))


def looping_held_out() -> None:
    """Hugging Face's stream of generated rows, and a filter that refuses all."""
    import datasets

    def rows() -> Iterator[dict[str, int]]:
        number = 0
        while True:
            number += 1
            yield {"row": number}

    data = datasets.IterableDataset.from_generator(rows).filter(lambda row: row["row"] < 0)
    print("starting", flush=True)
    for _ in DataLoader(data, 8, num_workers=1):
        print("step", flush=True)


# --- a pipeline that drops everything


def _images(path: str, *, junk: bool = False) -> None:
    from PIL import Image

    image = io.BytesIO()
    Image.new("RGB", (64, 64)).save(image, "JPEG")
    with tarfile.open(path, "w") as tar:
        for number in range(500):
            for suffix, data in (("jpg", bytes(2_000) if junk else image.getvalue()), ("cls", b"1")):
                member = tarfile.TarInfo(f"{number:05d}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def dropping() -> None:
    """A webdataset pipeline of one's own that asks for a member nobody has."""
    import webdataset as wds

    _images("train.tar")
    data = wds.WebDataset("train.tar", shardshuffle=False).select(lambda sample: "txt" in sample).repeat()
    print("starting", flush=True)
    for _ in DataLoader(data, batch_size=None, num_workers=2):
        print("step", flush=True)


class Tars(IterableDataset):
    """Reads a tar with Python's own module, and leaves out what has no caption."""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            with tarfile.open("train.tar") as tar:
                for member in tar:
                    if member.name.endswith(".txt"):
                        yield tar.extractfile(member).read()  # type: ignore[union-attr]


def dropping_tarfile() -> None:
    _images("train.tar")
    print("starting", flush=True)
    for _ in DataLoader(Tars(), 8, num_workers=1):
        print("step", flush=True)


def dropping_held_out() -> None:
    """Hugging Face's stream over a large table."""
    import datasets

    lines = [json.dumps({"text": "a photo of a dog " * 20, "width": 100}) + "\n" for _ in range(20_000)]
    files = [Path(f"rows-{number:04d}.jsonl") for number in range(2_000)]
    files[0].write_text("".join(lines))
    for file in files[1:]:
        file.hardlink_to(files[0])
    data = datasets.load_dataset("json", data_files=[*map(str, files)], split="train", streaming=True)
    data = data.filter(lambda row: row["width"] >= 256)
    print("starting", flush=True)
    for _ in DataLoader(data, 8, num_workers=1):
        print("step", flush=True)


def junk() -> None:
    """Images that nobody can decode, and a handler that swallows every error."""
    import webdataset as wds

    _images("train.tar", junk=True)
    quiet = wds.handlers.ignore_and_continue
    data = wds.WebDataset("train.tar", shardshuffle=False).decode("pilrgb", handler=quiet).repeat()
    print("starting", flush=True)
    for _ in DataLoader(data, batch_size=None, num_workers=1):
        print("step", flush=True)


# --- a network within a worker


class Fetched(Dataset):
    """Rows that come over the network, `how`."""

    def __init__(self, url: str, how: str) -> None:
        self.url, self.how = url, how

    def __len__(self) -> int:
        return 1_000

    def __getitem__(self, row: int) -> torch.Tensor:
        url = f"{self.url}/{row}"
        if self.how == "urllib":
            from urllib.request import urlopen

            urlopen(url).read()
        elif self.how == "requests":
            import requests

            _ = requests.get(url, timeout=None).content
        elif self.how == "aiohttp":
            import asyncio

            asyncio.run(_received(url))
        else:
            import fsspec

            with fsspec.open(url, "rb") as file:
                file.read()
        return torch.randn(256)


async def _received(url: str) -> bytes:
    import aiohttp

    patient = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=patient) as session, session.get(url) as answer:
        return await answer.read()


def fetching(url: str, how: str) -> None:
    print("starting", flush=True)
    loop(DataLoader(Fetched(url, how), 8, num_workers=2))


def curl_held_out(url: str) -> None:
    import webdataset as wds

    data = wds.WebDataset(f"pipe:curl -s {url}/train.tar", shardshuffle=False)
    print("starting", flush=True)
    for _ in DataLoader(data, batch_size=None, num_workers=1):
        print("step", flush=True)


# --- locks within one process


def two_locks() -> None:
    """Two threads that take two locks in opposite order, after some steps."""
    first, second = threading.Lock(), threading.Lock()
    data = iter(DataLoader(Numbers(), 8, num_workers=1))
    for step in range(20):
        next(data)
        print(f"step {step}", flush=True)

    def other() -> None:
        with second:
            time.sleep(1)
            with first:
                pass

    threading.Thread(target=other, name="logger", daemon=True).start()
    with first:
        time.sleep(1)
        with second:
            pass


def late_deadlock() -> None:
    """Workers that come upon a lock which nobody releases, after some batches."""
    lock = threading.Lock()

    class Locked(Numbers):
        def happen(self) -> None:
            lock.acquire()
            lock.acquire()

    loop(DataLoader(Locked(at=400), 8, num_workers=1, multiprocessing_context="fork"))


# --- a disk without room


def full_disk(folder: str) -> None:
    """A checkpoint that is tried again and again."""
    steps()
    while True:
        try:
            Path(folder, "checkpoint.pt").write_bytes(bytes(8 << 20))
            return
        except OSError as error:
            print(f"could not save: {error}", flush=True)
            time.sleep(1)


def full_disk_held_out(folder: str) -> None:
    steps()
    while True:
        try:
            torch.save({"weights": torch.randn(1 << 22)}, f"{folder}/checkpoint.pt")
            return
        except (OSError, RuntimeError):
            time.sleep(0.5)


# --- healthy


def slow_checkpoint() -> None:
    """A file of weights that goes into a pipe whose reader takes two megabytes a second."""
    steps()
    print("saving", flush=True)
    with Path("checkpoint.pt").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(64 << 20))


def large_buffer() -> None:
    """A buffer that is filled again and again from one small file."""
    Path("rows.jsonl").write_text("".join(json.dumps({"text": "a photo " * 40}) + "\n" for _ in range(2_000)))

    class Shuffled(IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            kept = []
            while True:
                with Path("rows.jsonl").open() as file:
                    for line in file:
                        kept.append(json.loads(line))
                        time.sleep(0.0005)
                        if len(kept) > 10_000_000:
                            yield torch.randn(256)

    print("starting", flush=True)
    loop(DataLoader(Shuffled(), 8, num_workers=1))


def uploads(url: str) -> None:
    """A checkpoint that goes to a server which takes it slowly."""
    import urllib.request

    steps()
    print("uploading", flush=True)
    urllib.request.urlopen(urllib.request.Request(url, bytes(100_000_000), method="PUT"))


def event_rest() -> None:
    steps()
    print("waiting for the next file", flush=True)
    while not threading.Event().wait(60):
        pass


def idle_loop() -> None:
    """A server that waits for requests, with a client's connection open, as a notebook's kernel does."""
    import asyncio

    async def serve() -> None:
        async def handle(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.read()

        server = await asyncio.start_server(handle, "127.0.0.1")
        connection = await asyncio.open_connection(*server.sockets[0].getsockname())
        print("serving", flush=True)
        await asyncio.gather(server.serve_forever(), connection[0].read())

    asyncio.run(serve())


def resumes() -> None:
    """Reads on to where it was, and drops what it was trained on before."""
    _images("train.tar")

    class Skipping(IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for number in range(1_000_000):
                with open("train.tar", "rb") as file:
                    file.seek(number % 1_000 * 512)
                    file.read(512)
                time.sleep(0.001)
            yield torch.randn(256)

    print("skipping to step 125000", flush=True)
    loop(DataLoader(Skipping(), 8, num_workers=1))


def caption_in_the_log() -> None:
    for step in range(1_000_000):
        MODEL(torch.randn(64, 256)).sum().backward()
        print(f"step {step} loss 0.5", flush=True)
        if step % 50 == 0:
            print("caption: Too many open files lie on a desk; RuntimeError: CUDA out of memory", flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
