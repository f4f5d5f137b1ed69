"""Stalls outside of the loader, and of pipelines that nobody here wrote: each kind in three ways, one held out."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from tests.stalls.contract import Stall, Training, launch, says
from tests.stalls.own import PYTHON, HungServer

PROGRAM = "tests.stalls.waits_program"
TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


def program(
    folder: Path,
    kind: str,
    *words: str,
    ready: str,
    settle_s: float = 3.0,
    stdin: int = subprocess.DEVNULL,
    before: tuple[str, ...] = (),
    **env: str,
) -> Training:
    """A training of tests/stalls/waits_program.py that is examined while it lives."""
    start = [*before, "-m"] if before else [sys.executable, "-m"]
    process, log = launch([*start, PROGRAM, kind, *words], folder, {**PYTHON, **env}, stdin)
    return Training(process, log, says(log, ready, settle_s))


def _asking(folder: Path, kind: str, ready: str, *, terminal: bool) -> Training:
    """One whose standard input is a pipe or a terminal that nobody writes to."""
    ours, theirs = pty.openpty() if terminal else reversed(os.pipe())
    training = program(folder, kind, ready=ready, stdin=theirs)
    os.close(theirs)
    training.clean.append(lambda: os.close(ours))
    return training


def _locked(folder: Path, kind: str, ready: str, lock: Callable[[Path], Path]) -> Training:
    """Another process holds the lock."""
    path = lock(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    hold = f"import fcntl, time; f = open({str(path)!r}, 'a'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(1e6)"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    training = program(folder, kind, ready=ready)
    training.clean += [holder.kill, holder.wait, holder.stdout.close]
    return training


def _datasets_lock(folder: Path) -> Path:
    """The lock of the table's cache: its name follows from the data, so a first run finds it."""
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, "datasets_lock_held_out"],
        cwd=folder,
        env={**os.environ, **PYTHON},
        capture_output=True,
        check=True,
    )
    assert b"preparing" in done.stdout
    (found,) = (folder / "cache").glob("*.lock")
    shutil.rmtree(folder / "cache/json", ignore_errors=True)
    return found


def _ranks(folder: Path, kind: str, ready: str, *options: str, settle_s: float = 3.0) -> Training:
    command = [TORCHRUN, *(options or ("--standalone", "--nproc_per_node=2")), "-m", PROGRAM, kind]
    process, log = launch(command, folder, PYTHON)
    return Training(process, log, says(log, ready, settle_s))


def _one_asks(folder: Path) -> Training:
    """Rank 1 of two asks its user, by a pipe that nobody writes to."""
    theirs, ours = os.pipe()
    command = [TORCHRUN, "--standalone", "--nproc_per_node=2", "-m", PROGRAM, "one_rank_asks"]
    process, log = launch(command, folder, PYTHON, theirs)
    os.close(theirs)
    return Training(process, log, says(log, "rank 1 step 0", 4), [lambda: os.close(ours)])


def _alone(folder: Path) -> Training:
    """One of two ranks of somebody's own launcher."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return program(folder, "joins", ready="joining", settle_s=5, **env)


def _behind(folder: Path, words: tuple[str, ...], kind: str, ready: str) -> Training:
    """A training that another program has started."""
    process, log = launch([*words, "-m", PROGRAM, kind], folder, PYTHON)
    return Training(process, log, says(log, ready, 3))


def _paused(folder: Path, kind: str, start: Callable[[Path], Training]) -> Training:
    """One of two ranks is stopped by a signal."""
    training = start(folder)
    is_training = training.is_ready
    paused: list[int] = []

    def is_ready() -> bool:
        if not is_training():
            return False
        if not paused:
            children = psutil.Process(training.pid).children(recursive=True)
            ranks = [
                one for one in children if "spawn_main" in " ".join(one.cmdline()) or kind in one.cmdline()
            ]
            ranks[-1].suspend()
            paused.append(ranks[-1].pid)
            time.sleep(3)
        return True

    training.is_ready = is_ready
    training.clean.append(lambda: [_kill(pid) for pid in paused])
    return training


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


_LARGE = tarfile.TarInfo("00000.jpg")
_LARGE.size = 100_000_000
_BEGUN = _LARGE.tobuf() + bytes(30_000)
"""The beginning of a tar, of which no sample is whole."""


class PausingServer(HungServer):
    """Answers with a beginning, and then with `rate` bytes a second, or with nothing more."""

    def __init__(self, rate: int = 0) -> None:
        super().__init__()
        self.rate = rate
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            client.recv(1 << 16)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + _BEGUN)
            while self._listener.fileno() >= 0:
                if self.rate:
                    client.sendall(bytes(self.rate // 4))
                time.sleep(0.25)


def _fetching(folder: Path, kind: str, *words: str, rate: int = 0) -> Training:
    server = PausingServer(rate)
    training = program(folder, kind, server.url, *words, ready="starting", settle_s=6)
    training.clean.append(server.close)
    return training


class SlowReceiver(PausingServer):
    """Takes 100 kB of the request a second, and answers nothing."""

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            while self._listener.fileno() >= 0 and client.recv(25_000):
                time.sleep(0.25)


def _uploading(folder: Path) -> Training:
    server = SlowReceiver()
    training = program(folder, "uploads", server.url, ready="uploading", settle_s=6)
    training.clean.append(server.close)
    return training


def _full_disk(folder: Path, kind: str) -> Training:
    place = folder / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    training = program(folder, kind, str(place), ready="step 19", settle_s=4)
    training.clean.append(lambda: subprocess.run(["umount", "--lazy", str(place)], check=True))
    return training


def _no_mounts() -> str | None:
    return None if os.geteuid() == 0 else "mounting a small file system takes root"


def _opened_pipe(folder: Path) -> Training:
    """A checkpoint whose opening hangs, as on a mount whose server is gone."""
    os.mkfifo(folder / "checkpoint.pt")
    return program(folder, "slow_checkpoint", ready="saving", settle_s=4)


def _emptied_pipe(folder: Path) -> Training:
    """A checkpoint that goes on at two megabytes a second."""
    os.mkfifo(folder / "checkpoint.pt")
    reader = os.open(folder / "checkpoint.pt", os.O_RDONLY | os.O_NONBLOCK)
    is_over = threading.Event()

    def empty() -> None:
        while not is_over.wait(0.03):
            with suppress(BlockingIOError):
                os.read(reader, 65_536)

    thread = threading.Thread(target=empty, daemon=True)
    thread.start()
    training = program(folder, "slow_checkpoint", ready="saving", settle_s=4)
    training.clean += [is_over.set, thread.join, lambda: os.close(reader)]
    return training


def _after(seconds: float) -> Callable[[], bool]:
    began = time.monotonic()
    return lambda: time.monotonic() - began > seconds


VALIDATES = frozenset({"validation.rank0"})
INPUT, LOCK, MISSING, PAUSED, PRODUCER, LOOPING, SPINNING, DOWNLOAD, DEADLOCK, FULL, CHECKPOINT = (
    frozenset({code})
    for code in (
        "input.waiting", "lock.waiting", "ranks.missing", "rank.paused", "producer.dead", "worker.looping",
        "filter.spinning", "download.blocked", "worker.deadlock", "disk.full", "checkpoint.stalled",
    )
)  # fmt: skip
_BIN = Path(sys.executable).parent
LAUNCHERS: tuple[tuple[str, ...], ...] = (
    ("timeout", "1000", sys.executable),
    ("tarmac", "watch", "--", sys.executable),
    ("accelerate", "launch", "--num_processes=1", "--cpu"),
    ("bash", "-c", 'python "$@"; echo over', "bash"),
)
_TWO_NODES = ("--nnodes=2", "--nproc_per_node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29431")
STALLS = (
    Stall("input() on a pipe", partial(_asking, kind="asks", ready="step 19", terminal=False), INPUT),
    Stall("a breakpoint in a terminal", partial(_asking, kind="debugger", ready="(Pdb)", terminal=True), INPUT),
    Stall(
        "huggingface_hub asks for a token (held out)",
        partial(_asking, kind="token_held_out", ready="step 19", terminal=True),
        INPUT,
        needs_stacks=True,
    ),
    *(
        Stall(
            f"behind {' '.join(words[:2])}",
            partial(_behind, words=words, kind="looping", ready="step 0"),
            LOOPING,
        )
        for words in LAUNCHERS
    ),
    Stall("flock", partial(_locked, kind="flock", ready="preparing", lock=lambda one: one / "cache.lock"), LOCK),
    Stall(
        "filelock",
        partial(_locked, kind="file_lock", ready="preparing", lock=lambda one: one / "cache.lock"),
        LOCK,
        needs_stacks=True,
    ),
    Stall(
        "datasets' cache is locked (held out)",
        partial(_locked, kind="datasets_lock_held_out", ready="preparing", lock=_datasets_lock),
        LOCK,
        needs_stacks=True,
    ),
    Stall("one of two ranks was started", _alone, MISSING),
    Stall(
        "torchrun waits for a node (held out)",
        lambda folder: Training(*launch([TORCHRUN, *_TWO_NODES, "-m", PROGRAM, "joins"], folder, PYTHON), _after(8)),
        MISSING,
    ),
    Stall(
        "a rank is paused in all_reduce",
        partial(_paused, kind="all_reduces", start=partial(_ranks, kind="all_reduces", ready="step 20")),
        PAUSED,
    ),
    Stall(
        "a rank is paused in DDP's backward",
        partial(_paused, kind="ddp", start=partial(_ranks, kind="ddp", ready="step 20")),
        PAUSED,
    ),
    Stall(
        "a rank of mp.spawn is paused (held out)",
        partial(_paused, kind="", start=partial(program, kind="spawned_ranks_held_out", ready="step 20")),
        PAUSED,
    ),
    Stall("a rank asks, the other reduces", _one_asks, INPUT),
    Stall("one rank validates, the other waits", lambda folder: _ranks(folder, "one_rank_validates", "step 0", settle_s=5), VALIDATES, needs_stacks=True),
    Stall("one rank runs its trainer's validation loop (held out)", lambda folder: _ranks(folder, "one_rank_validates_held_out", "step 0", settle_s=5), VALIDATES, needs_stacks=True),
    Stall("a producing thread is dead", partial(program, kind="dead_thread", ready="Exception in thread"), PRODUCER, needs_stacks=True),
    Stall("a producing process is dead", partial(program, kind="dead_process", ready="step 19"), PRODUCER, needs_stacks=True),
    Stall("a pool lost its task (held out)", partial(program, kind="dead_pool_held_out", ready="step 19"), PRODUCER, needs_stacks=True),
    Stall("a sample that computes for ever", partial(program, kind="looping", ready="step 0"), LOOPING),
    Stall("a stream that accepts nothing", partial(program, kind="looping_iterable", ready="starting"), LOOPING),
    Stall("datasets' filter accepts nothing (held out)", partial(program, kind="looping_held_out", ready="starting", settle_s=6), LOOPING),
    Stall("webdataset's select accepts nothing", partial(program, kind="dropping", ready="starting", settle_s=6), SPINNING),
    Stall("a tar read by hand, all dropped", partial(program, kind="dropping_tarfile", ready="starting", settle_s=6), SPINNING),
    Stall("datasets' stream, all dropped (held out)", partial(program, kind="dropping_held_out", ready="starting", settle_s=9), SPINNING),
    Stall("junk images, swallowed", partial(program, kind="junk", ready="starting", settle_s=6), SPINNING),
    Stall("urllib in a worker, half a body", lambda folder: _fetching(folder, "fetching", "urllib"), DOWNLOAD),
    Stall("requests in a worker, half a body", lambda folder: _fetching(folder, "fetching", "requests"), DOWNLOAD),
    Stall("fsspec in a worker, half a body", lambda folder: _fetching(folder, "fetching", "fsspec"), DOWNLOAD),
    Stall("aiohttp in a worker, half a body", lambda folder: _fetching(folder, "fetching", "aiohttp"), DOWNLOAD),
    Stall("webdataset through curl, half a body (held out)", lambda folder: _fetching(folder, "curl_held_out"), DOWNLOAD),
    Stall("two locks in one process", partial(program, kind="two_locks", ready="step 19"), DEADLOCK, needs_stacks=True),
    Stall("workers deadlock after some batches", partial(program, kind="late_deadlock", ready="step 40", settle_s=5), DEADLOCK),
    Stall("a full disk, tried again", lambda folder: _full_disk(folder, "full_disk"), FULL, missing=_no_mounts),
    Stall("torch.save on a full disk, tried again (held out)", lambda folder: _full_disk(folder, "full_disk_held_out"), FULL, missing=_no_mounts, needs_stacks=True),
    Stall("a checkpoint that cannot be opened", _opened_pipe, CHECKPOINT, needs_stacks=True),
)  # fmt: skip
HEALTHY = (
    Stall("a checkpoint at two megabytes a second", _emptied_pipe),
    Stall("a download of 30 kB/s in a worker", lambda folder: _fetching(folder, "fetching", "urllib", rate=30_000)),
    Stall("an upload of 100 kB/s", _uploading),
    Stall("one small file fills a large buffer", partial(program, kind="large_buffer", ready="starting", settle_s=4)),
    Stall("one rank prepares, the other waits", lambda folder: _ranks(folder, "one_rank_prepares", "step 0", settle_s=5)),
    Stall("resting on an event", partial(program, kind="event_rest", ready="waiting")),
    Stall("an idle event loop", partial(program, kind="idle_loop", ready="serving")),
    Stall("skipping to where it was", partial(program, kind="resumes", ready="skipping", settle_s=4)),
    Stall("a caption that quotes errors", partial(program, kind="caption_in_the_log", ready="caption")),
)  # fmt: skip
