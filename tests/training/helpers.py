"""Small runs on the digits: planned, trained in this process or in one of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tasks.core import config as configs
from tasks.core.process import Identity
from tasks.dataset.version import versions
from tasks.loader.settings import LoaderSettings, read_settings, write_settings
from tasks.runs import metrics, phases
from tasks.runs.checkpoints import list_checkpoints
from tasks.runs.environment import LOOPBACK, Meeting, naming
from tasks.runs.folder import RunFolder
from tasks.runs.plan import plan
from tasks.supervision.ranks.node_ranks import Rendezvous
from tasks.training import devices
from tasks.training.loop import train
from tests.conftest import ROOT, digits_config

STEPS = 90
EVERY = 30
SMALL = (
    "train.batch_size=32",
    f"train.steps={STEPS}",
    "train.warmup=5",
    f"train.checkpoint_every={EVERY}",
    "train.log_every=5",
    "train.threads=1",
    f"evaluate.every={EVERY}",
)
PATIENCE_S = 300.0


def make_run(dataset: Path, folder: Path, *overrides: str, workers: int = 0) -> RunFolder:
    """A planned run in `folder` on the built digits."""
    config = digits_config(folder / "raw", folder, *SMALL, *overrides)
    run = plan(config, versions.resolve(dataset))
    set_workers(run, workers)
    return run


def set_workers(run: RunFolder, workers: int) -> None:
    write_settings(run.loader, LoaderSettings(workers=workers, prefetch=2, reason="for a test"))


def train_here(run: RunFolder) -> int:
    """Train in this process; the step reached."""
    writer = phases.PhaseWriter(run)
    writer.set("start", 0)
    config = configs.reload(run.config)
    assert config.train is not None
    device = devices.choose(config.train)
    return train(run, config, read_settings(run.loader), writer, device)


def start_rank(run: RunFolder, agent: Identity | None = None) -> subprocess.Popen[bytes]:
    """The training process as the agent starts it: a session of its own, its input a pipe."""
    with (run.path / "rank.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tasks.training.rank", str(run.path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, **({} if agent is None else naming(agent))},
            start_new_session=True,
        )


def wait_for(
    condition: Callable[[], bool], process: subprocess.Popen[bytes], run: RunFolder, log: str = "rank.log"
) -> None:
    """Until it holds; fails with the log when the process ends before that, or takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, (run.path / log).read_text()
        time.sleep(0.01)


def is_beyond_checkpoint(run: RunFolder) -> bool:
    """Whether it has a checkpoint and has gone on since."""
    saved = list_checkpoints(run)
    phase = phases.read_phase(run.phase())
    return bool(saved) and phase is not None and phase.step > saved[-1].step


def model_bytes(run: RunFolder, step: int) -> bytes:
    return (run.checkpoint(step) / "model.safetensors").read_bytes()


def rows(run: RunFolder, kind: str) -> dict[int, dict[str, float]]:
    """The rows of a kind by step; fails when a step has two."""
    found = metrics.rows_of(metrics.read_metrics(run.metrics)[0], kind)
    by_step = {row["train/step"]: row for row in found}
    assert len(by_step) == len(found)
    return by_step


def start_ranks(run: RunFolder, count: int) -> list[subprocess.Popen[bytes]]:
    """The processes of a training on several ranks, with the environment that its agent gives them."""
    meeting = Meeting(run.meeting(1))
    meeting.prepare()
    ranks = []
    with socket.create_server((LOOPBACK, 0)) as listener:
        meets = Rendezvous(range(count), count, listener.getsockname()[1], socket=listener)
        for rank in range(count):
            own = {**meeting.environment(meets.place(rank)), "OMP_NUM_THREADS": "1"}
            with (run.path / f"rank_{rank}.log").open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tasks.training.rank", str(run.path)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=ROOT,
                    env={**os.environ, **own},
                    pass_fds=[] if rank else [listener.fileno()],
                    start_new_session=True,
                )
            ranks.append(process)
    return ranks


@contextmanager
def training_on(run: RunFolder, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """They run within, and none stays behind."""
    ranks = start_ranks(run, count)
    try:
        yield ranks
    finally:
        for rank in ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def exit_codes(run: RunFolder, ranks: list[subprocess.Popen[bytes]]) -> list[int]:
    """Of all ranks, each as soon as it ends; fails with their logs when one takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while None in (codes := [rank.poll() for rank in ranks]):
        assert time.monotonic() < deadline, logs(run)
        time.sleep(0.05)
    return [code for code in codes if code is not None]


def logs(run: RunFolder) -> str:
    """What all ranks printed."""
    return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(run.path.glob("rank_*.log")))
