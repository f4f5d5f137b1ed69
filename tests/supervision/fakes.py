"""A training and an evaluation made of a few lines, run as real processes by the real agent.

The training keeps the contract of the real one: it resumes, writes rows, phases and checkpoints by rename,
obeys `stop`, and ends when its standard input closes. What it does otherwise stands in `fake.json` in the run
folder. Each holds a lock while it works: two at once leave the file `two_writers`.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from blake3 import blake3

from tasks.core import config as configs
from tasks.core.errors import DataError
from tasks.core.files import link_atomic, write_atomic, write_json
from tasks.core.schema import Config
from tasks.loader.settings import LoaderSettings, write_settings
from tasks.runs import checkpoints, metrics, phases, stop
from tasks.runs.data import data_of
from tasks.runs.environment import Meeting
from tasks.runs.folder import RunFolder
from tasks.runs.phases import PhaseWriter
from tasks.runs.plan import plan
from tasks.supervision import agent, allocation, launch
from tasks.supervision.attempt import restarts, standstill, tuning
from tasks.supervision.evaluating import evaluation_jobs, evaluation_process, evaluations, following
from tasks.supervision.ranks import node_ranks, other_node, trainer

ROOT = Path(__file__).parents[2]
"""What must be on the path of a process that imports this module."""


def make_run(tmp_path: Path, behaviour: dict[str, Any] | None = None, **blocks: Any) -> RunFolder:
    """A planned run of 40 steps with checkpoints at every tenth, on a version that is only a manifest."""
    splits = {
        "train": {"shards": 1, "samples": 80, "bytes": 1},
        "val": {"shards": 1, "samples": 20, "bytes": 1},
    }
    manifest = {"splits": splits, "read": 103, "accepted": 100, "filtered": 1, "rejects": {"image.empty": 2}}
    write_json(tmp_path / "draft" / "manifest.json", manifest)
    version = tmp_path / "data" / "versions" / data_of(tmp_path / "draft")[0].version
    version.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "draft").rename(version)
    run = plan(make_config(tmp_path, **blocks), version)
    write_settings(run.loader, LoaderSettings(workers=0, prefetch=2, reason="of a test"))
    write_json(run.path / "fake.json", behaviour or {})
    return run


def make_config(tmp_path: Path, **blocks: Any) -> Config:
    source = {"kind": "table", "path": str(tmp_path / "raw.csv"), "image": "file", "caption": "caption"}
    train = {
        "recipe": "clip",
        "model": {"name": "tarmac/digits"},
        "batch_size": 4,
        "steps": 40,
        "lr": 1e-3,
        "checkpoint_every": 10,
        "on_crash": "stop",
    }
    values = {
        "name": "fake",
        "runs": str(tmp_path / "runs"),
        "dataset": {"output": str(tmp_path / "data"), "modality": "image_text", "source": source},
        "train": {**train, **blocks.pop("train", {})},
        "evaluate": {"every": 40, "tasks": ["zero_shot"]},
        "track": {"mode": "disabled"},
        **blocks,
    }
    return configs.validate(values, "test")


def model_of(step: int) -> bytes:
    """The weights after `step` steps of an undisturbed training."""
    state = b"seed"
    for _ in range(step):
        state = blake3(state).digest()
    return state


def behaviour_of(run: RunFolder) -> dict[str, Any]:
    return {"step_s": 0.02, "evaluation_s": 0.1, **json.loads((run.path / "fake.json").read_text())}


def only_one(run: RunFolder, name: str) -> Any:
    lock = (run.path / f".{name}.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (run.path / "two_writers").write_text(name)
    return lock


def train(folder: str) -> int:
    run = RunFolder(Path(folder))
    behaviour = behaviour_of(run)
    threading.Thread(target=lambda: (os.read(0, 1), os._exit(3)), daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank = int(os.environ.get("RANK", "0"))
    if rank:
        return follow(run, rank, behaviour)
    lock = only_one(run, "training")
    config = configs.reload(run.config)
    assert config.train is not None and config.train.steps is not None
    if behaviour.get("says"):
        print(behaviour["says"], flush=True)
    if behaviour.get("no_batches"):
        return 0
    tell_where(run, behaviour)
    start_what_outlives_it(run, behaviour)
    writer, phase = metrics.MetricsWriter(run.metrics), PhaseWriter(run)
    found = checkpoints.newest_sound(run)
    step = 0 if found is None else found.step
    state = (
        behaviour.get("seed", "seed").encode()
        if found is None
        else (found.path / "model.safetensors").read_bytes()
    )
    phase.set("first_batch", step)
    while step < config.train.steps:
        time.sleep(behaviour["step_s"])
        step += 1
        state = blake3(state).digest()
        loss = math.nan if step == behaviour.get("nan_at") else 1 / step
        phase.set("step", step)
        writer.append(metrics.make_row("train/step", step, "train", {"train/loss": loss}))
        if step == behaviour.get("nan_at"):
            return 1
        misbehave(run, step, behaviour)
        is_stopped = run.stop.exists() and not behaviour.get("deaf")
        if step % config.train.checkpoint_every == 0 or is_stopped:
            save(run, step, state)
        if is_stopped:
            return 0
    lock.close()
    return 0


def misbehave(run: RunFolder, step: int, behaviour: dict[str, Any]) -> None:
    """Do what the behaviour has for the end of this step: stand still, wait, die."""
    held = run.checkpoints / "held.pt"
    if step == behaviour.get("stands_still_at") and (behaviour.get("again") or not held.exists()):
        write_to_nobody(held)
    if step == behaviour.get("waits_to_be_stopped_at"):
        while not run.stop.exists():
            time.sleep(0.05)
    if step == behaviour.get("die_at"):
        os.kill(os.getpid(), signal.SIGKILL)


def start_what_outlives_it(run: RunFolder, behaviour: dict[str, Any]) -> None:
    """A process in a session of its own, as another trainer's launcher starts its ranks."""
    if not behaviour.get("starts"):
        return
    command = [sys.executable, "-c", "import time; time.sleep(600)", str(run.path)]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def write_to_nobody(pipe: Path) -> None:
    """Save into a pipe that nobody empties, as to a file system that does not answer."""
    pipe.parent.mkdir(exist_ok=True)
    if not pipe.exists():
        os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pipe.open("wb", buffering=0) as file:
        file.write(bytes(1 << 20))
    os.close(reader)


def follow(run: RunFolder, rank: int, behaviour: dict[str, Any]) -> int:
    """Run a further rank, which takes no steps: it ends after the first one, or as `behaviour` asks."""
    config = configs.reload(run.config)
    assert config.train is not None and config.train.steps is not None
    while not run.checkpoint(config.train.steps).exists() and not run.stop.exists():
        time.sleep(0.02)
        phase = phases.read_phase(run.phase())
        if phase is None or phase.step < 3 or behaviour.get("odd_rank") != rank:
            continue
        if behaviour["does"] == "fail":
            print("error: train/000007.tar row 2, key 'a': is bad", flush=True)
            meeting = Meeting.of(os.environ)
            assert meeting is not None
            meeting.has_failed(rank)
            return 1
        os.kill(os.getpid(), signal.Signals[behaviour["does"]])
    return 0


def tell_where(run: RunFolder, behaviour: dict[str, Any]) -> None:
    """Which copy of the library this process runs."""
    if behaviour.get("where"):
        with (run.path / "where").open("a") as file:
            file.write(f"{evaluations.__file__}\n")


def save(run: RunFolder, step: int, state: bytes) -> None:
    if run.checkpoint(step).exists():
        return
    draft = run.checkpoints / f".draft_{step}"
    write_atomic(draft / "model.safetensors", state)
    files = {"model.safetensors": blake3(state).hexdigest()}
    val_loss = abs(step - 20) / 100
    write_json(draft / "meta.json", {"step": step, "files": files, "val_loss": val_loss, "time": 0.0})
    draft.rename(run.checkpoint(step))
    link_atomic(run.latest, run.checkpoint(step).name)


def evaluate(folder: Path, step: int, task: str, question: str = "") -> None:
    run = RunFolder(folder)
    behaviour = behaviour_of(run)
    lock = only_one(run, f"{task}_{step}")
    with (run.path / "evaluated").open("a") as file:
        file.write(f"{step}\n")
    tell_where(run, behaviour)
    time.sleep(behaviour["evaluation_s"])
    does = behaviour.get("evaluations", {}).get(str(step))
    if does == "fail" or step == behaviour.get("evaluation_fails_at"):
        raise ValueError("the weights do not fit")
    if does == "die" or step == behaviour.get("evaluation_dies_at"):
        os.kill(os.getpid(), signal.SIGKILL)
    result = {
        "task": task,
        "step": step,
        "checkpoint": str(run.checkpoint(step)),
        "metrics": {behaviour.get("metric", "top1"): behaviour.get("top1", step / 100)}
        if does != "wrong"
        else {"top1": "high"},
        "intervals": {"top1": [0.0, 1.0]},
        "samples": 20,
        "seconds": 0.1,
        "versions": {},
        "split": "val",
        "chance": {"top1": 0.1},
        "question": question,
    }
    write_json(run.evaluation(step, task), result)
    lock.close()


def rank_command(run: RunFolder, config: Config) -> list[str]:
    return [sys.executable, "-m", "tests.supervision.fakes", str(run.path)]


def keeper_command(run: RunFolder, number: int) -> list[str]:
    return [sys.executable, "-m", "tests.supervision.fakes", str(run.path), str(number)]


def keep(folder: str, number: str) -> int:
    """The real keeper of a further node with the fake training."""
    node_ranks.rank_command = rank_command
    return other_node.main([folder, number])


def agent_main(folder: str, aside_s: str | None = None, predecessor: str | None = None) -> None:
    """The real agent with these two in the place of the real training and evaluation."""
    node_ranks.rank_command = rank_command
    trainer.keeper_command = keeper_command
    tuning.MEASURE = "tests.supervision.fakes:measure"
    evaluation_jobs.JOB = "tests.supervision.fakes:evaluation_job"
    evaluations.TRIES = behaviour_of(RunFolder(Path(folder))).get("tries", evaluations.TRIES)
    evaluations.RETRY_S = behaviour_of(RunFolder(Path(folder))).get("retry_s", 0.0)
    stop.GRACE_S = behaviour_of(RunFolder(Path(folder))).get("stop_grace_s", stop.GRACE_S)
    restarts.RESTARTS = behaviour_of(RunFolder(Path(folder))).get("restarts", restarts.RESTARTS)
    restarts.PAUSES_S = behaviour_of(RunFolder(Path(folder))).get("pauses_s", (0.0, 0.0, 0.0))
    least_s = behaviour_of(RunFolder(Path(folder))).get("silence_s")
    if least_s is not None:
        standstill.LEAST_S = {"step": least_s}
        standstill.TIMES = 1.0
    for name in ("FOLLOW_S", "STOPPED_S"):
        setattr(trainer, name, behaviour_of(RunFolder(Path(folder))).get(name, getattr(trainer, name)))
    following.TORN_S = behaviour_of(RunFolder(Path(folder))).get("torn_s", following.TORN_S)
    evaluation_jobs.STUCK_S = behaviour_of(RunFolder(Path(folder))).get("stuck_s", evaluation_jobs.STUCK_S)
    allocation.AGENT = "tests.supervision.fakes:agent_main"
    allocation.REVIVER = "tests.supervision.fakes:reviver_main"
    allocation.PATIENCE_S = behaviour_of(RunFolder(Path(folder))).get("patience_s", allocation.PATIENCE_S)
    allocation.ASIDE_S = behaviour_of(RunFolder(Path(folder))).get("aside_s", allocation.ASIDE_S)
    agent.main(folder, aside_s, predecessor)


def reviver_main(folder: str, agent_job: str) -> None:
    """The real reviver, which starts the agent above."""
    launch.AGENT = "tests.supervision.fakes:agent_main"
    allocation.REVIVER = "tests.supervision.fakes:reviver_main"
    launch.revive_in_slurm(folder, agent_job)


def measure(config: Config, version: Path, quarantine: Path, lengths: Path) -> LoaderSettings:
    """What the agent measures loader settings by."""
    run = RunFolder(quarantine.parent)
    behaviour = behaviour_of(run)
    assert phases.read_phase(run.phase()) is None, "a training has begun"
    time.sleep(behaviour.get("measuring_s", 0.0))
    if behaviour.get("cannot_measure"):
        raise DataError("train/000000.tar: cannot be read")
    return LoaderSettings(workers=1, prefetch=2, reason="measured by the agent")


def evaluation_job(folder: str, step: str, task: str, question: str) -> None:
    evaluation_process.run_evaluation = evaluate
    evaluation_process.run_job(folder, step, task, question)


if __name__ == "__main__":
    sys.exit(train(sys.argv[1]) if len(sys.argv) == 2 else keep(*sys.argv[1:]))
