"""Stalls of trainings that their users wrote themselves, and the faults of machines that bring them about."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tarfile
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import psutil

from tests.stalls import open_clip
from tests.stalls.contract import Stall, Training, launch, says
from tests.supervision.tracking import wandb_server

ROOT = Path(__file__).parents[2]
MEMORY_CGROUPS = Path("/sys/fs/cgroup/memory")
PYTHON = {"PYTHONPATH": str(ROOT)}


def program(
    folder: Path, kind: str, *words: str, ready: str = "step", settle_s: float = 2.0, **env: str
) -> Training:
    """A training of tests/stalls/program.py that is examined while it lives."""
    command = [sys.executable, "-m", "tests.stalls.program", kind, *words]
    process, log = launch(command, folder, {**PYTHON, **env})
    return Training(process, log, says(log, ready, settle_s))


def ended(folder: Path, kind: str, *before: str) -> Training:
    """One that ends by itself and leaves its log."""
    command = [*before, sys.executable, "-m", "tests.stalls.program", kind]
    process, log = launch(command, folder, PYTHON)
    return Training(process, log, lambda: process.poll() is not None)


def _small_shm(folder: Path) -> Training:
    mount = 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"'
    return ended(folder, "shm_full", "unshare", "--mount", "sh", "-c", mount, "sh")


def _no_mounts() -> str | None:
    return None if os.geteuid() == 0 and shutil.which("unshare") else "mounting a small /dev/shm takes root"


def _truncated(folder: Path) -> Training:
    with tarfile.open(folder / "whole.tar", "w") as tar:
        for number in range(50):
            for suffix in ("jpg", "txt"):
                (folder / "member").write_bytes(open_clip.member(suffix, number, 96, True))
                tar.add(folder / "member", f"{number:04d}.{suffix}")
    whole = (folder / "whole.tar").read_bytes()
    (folder / "cut.tar").write_bytes(whole[: len(whole) // 2 + 700])
    return ended(folder, "truncated")


def _out_of_memory(folder: Path) -> Training:
    group = MEMORY_CGROUPS / f"stall-{os.getpid()}-{folder.name}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(128 << 20))
    training = program(folder, "killed_unwatched", str(group), ready="waiting", settle_s=0)
    said = training.is_ready

    def is_ready() -> bool:
        events = (group / "memory.oom_control").read_text()
        return said() and "oom_kill 0" not in events

    training.is_ready = is_ready
    training.clean.append(group.rmdir)
    return training


def _no_memory_cgroup() -> str | None:
    is_there = os.access(MEMORY_CGROUPS, os.W_OK) and (MEMORY_CGROUPS / "memory.limit_in_bytes").exists()
    return None if is_there else "a memory cgroup of version 1 has to be writable"


def _ranks(folder: Path, kind: str, ready: str, settle_s: float) -> Training:
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    command = [torchrun, "--standalone", "--nproc_per_node=2", "-m", "tests.stalls.program", kind]
    process, log = launch(command, folder, PYTHON)
    return Training(process, log, says(log, ready, settle_s))


class HungServer:
    """Takes connections on the loopback interface and never answers; with `is_dead` it does not even take them."""

    def __init__(self, *, is_dead: bool = False) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=0 if is_dead else 128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._fillers = []
        for _ in range(4 if is_dead else 0):  # a full backlog drops what comes, as a firewall does
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(self._listener.getsockname())
            self._fillers.append(filler)

    def close(self) -> None:
        for one in (*self._fillers, self._listener):
            one.close()


def _tracker(folder: Path, kind: str = "tracker", *, is_dead: bool = False) -> Training:
    server = HungServer(is_dead=is_dead)
    settings = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40, "WANDB_INIT_TIMEOUT": "600"}
    training = program(folder, kind, ready="", settle_s=25, **settings)
    training.clean.append(server.close)
    return training


def _tracker_later(folder: Path, kind: str, ready: str, settle_s: float) -> Training:
    """A server that answers for an epoch, and then takes every request and answers none."""
    serving = ExitStack()
    server = serving.enter_context(wandb_server.serving())
    settings = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40}
    training = program(folder, kind, ready=ready, settle_s=settle_s, **settings)
    training.clean.append(serving.close)
    is_stalled = training.is_ready

    def is_ready() -> bool:
        if server.answers.is_set() and "the epoch ends" in training.text():
            server.answers.clear()
            (folder / "server_hangs").touch()
        return not server.answers.is_set() and is_stalled()

    training.is_ready = is_ready
    return training


def _download(folder: Path) -> Training:
    server = HungServer()
    command = open_clip.command(folder, "train-{000000..000003}.tar")
    command[command.index("--model") + 1] = "hf-hub:acme/tiny"
    patience = {"HF_HUB_ETAG_TIMEOUT": "600", "HF_HUB_DOWNLOAD_TIMEOUT": "600"}
    env = {"HF_ENDPOINT": server.url, "HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "0", **patience}
    process, log = launch(command, folder, env)
    training = Training(process, log, says(log, "Running with a single process", 6))
    training.clean.append(server.close)
    return training


def _checkpoint(folder: Path) -> Training:
    """open_clip's own checkpoint, into a pipe that nobody empties: as a file system whose server is gone."""
    place = folder / "logs/run/checkpoints"
    place.mkdir(parents=True)
    os.mkfifo(place / "epoch_1.pt")
    reader = os.open(place / "epoch_1.pt", os.O_RDONLY | os.O_NONBLOCK)
    shards = open_clip.write_shards(folder / "shards", samples=40)
    process, log = launch(open_clip.command(folder, shards, samples=64), folder)

    def is_ready() -> bool:
        import fcntl
        import struct
        import termios

        waiting: int = struct.unpack("i", fcntl.ioctl(reader, termios.FIONREAD, bytes(4)))[0]
        return waiting > 30_000

    training = Training(process, log, is_ready)
    training.clean.append(lambda: os.close(reader))
    return training


def _stream(folder: Path) -> Training:
    open_clip.write_shards(folder, shards=1)
    return program(folder, "stream", settle_s=3)


def _slow_download(folder: Path) -> Training:
    """Some kilobytes a second from a server of one's own, for as long as anybody looks."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            client, _ = listener.accept()
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
            while True:
                client.sendall(bytes(50_000))
                time.sleep(0.2)

    threading.Thread(target=serve, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/weights.pt"
    training = program(folder, "download", url, ready="downloading", settle_s=3)
    training.clean.append(listener.close)
    return training


def _paused_workers(folder: Path) -> Training:
    training = program(folder, "forked")
    is_training = training.is_ready

    def is_ready() -> bool:
        if not is_training():
            return False
        for child in psutil.Process(training.pid).children():
            child.suspend()
        time.sleep(2)
        return True

    training.is_ready = is_ready
    return training


KILLED, CRASHED, POISON = (
    frozenset({f"{one}"}) for one in ("worker.killed", "worker.crashed", "sample.poison")
)
TRACKER = frozenset({"tracker.blocked"})
STALLS = (
    Stall(
        "deadlock on a lock held at fork",
        partial(program, kind="deadlock_at_fork", ready="starting", settle_s=5),
        frozenset({"worker.deadlock"}),
    ),
    Stall("worker killed by a signal", partial(ended, kind="killed"), KILLED),
    Stall(
        "worker killed, and nobody looks",
        partial(program, kind="killed_unwatched", ready="waiting", settle_s=3),
        KILLED,
    ),
    Stall("worker killed for memory", _out_of_memory, KILLED, missing=_no_memory_cgroup),
    Stall("worker segfault", partial(ended, kind="segfault"), CRASHED),
    Stall("/dev/shm full", _small_shm, frozenset({"shm.too_small"}), missing=_no_mounts),
    Stall("file descriptors exhausted", partial(ended, kind="descriptors"), frozenset({"fds.too_few"})),
    Stall("truncated shard", _truncated, frozenset({"shard.truncated"})),
    Stall("a sample that fails", partial(ended, kind="raises"), POISON),
    Stall("a sample that fails, tried for ever", partial(program, kind="retries", ready="step 50"), POISON),
    Stall("wandb: hung server at init", _tracker, TRACKER, needs_stacks=True),
    Stall("wandb: dead server at init", partial(_tracker, is_dead=True), TRACKER),
    Stall(
        "wandb: finish() at an epoch's end, hung server",
        partial(_tracker_later, kind="tracker_at_the_end", ready="wandb: updating run", settle_s=10),
        TRACKER,
        needs_stacks=True,
    ),
    Stall(
        "wandb: a Table, hung server",
        partial(_tracker_later, kind="tracker_with_table", ready="AuthenticationError", settle_s=3),
        TRACKER,
        needs_stacks=True,
    ),
    Stall("checkpoint to a hung file system", _checkpoint, frozenset({"checkpoint.stalled"})),
    Stall("blocked hub download", _download, frozenset({"download.blocked"})),
    Stall(
        "uneven ranks at an epoch's end",
        partial(_ranks, kind="uneven_ranks", ready="ended its epoch", settle_s=5),
        frozenset({"collective.desync"}),
        needs_stacks=True,
    ),
)
HEALTHY = (
    Stall("forked workers", partial(program, kind="forked")),
    Stall("forkserver workers", partial(program, kind="forkserver")),
    Stall("spawned workers", partial(program, kind="spawned")),
    Stall("a tar of webdataset", _stream),
    Stall("a download that goes on", _slow_download),
    Stall("workers paused by their user", _paused_workers),
    Stall("slow rows, too few workers", partial(program, kind="few_workers")),
    Stall("slow first batch", partial(program, kind="slow_first_batch", ready="loading", settle_s=5)),
    Stall("a long start", partial(program, kind="starting", ready="building", settle_s=2)),
    Stall("resting between files", partial(program, kind="resting", ready="waiting")),
    Stall("a bar of tqdm", partial(program, kind="tqdm_bar")),
    Stall("checkpoints at every step", partial(program, kind="checkpoints")),
    Stall("wandb offline", partial(program, kind="offline_tracker", ready="step 100")),
    Stall("two ranks", partial(_ranks, kind="even_ranks", ready="step 100", settle_s=1)),
)
