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
import sys
import threading
import time
from pathlib import Path
from typing import Any

from blake3 import blake3

from tasks.core import config as configs
from tasks.core.files import link_atomic, write_atomic, write_json
from tasks.core.schema import Config
from tasks.runs import checkpoints, metrics
from tasks.runs.data import data_of
from tasks.runs.folder import RunFolder
from tasks.runs.phases import PhaseWriter
from tasks.runs.plan import plan
from tasks.supervision import agent, evaluation_jobs, evaluations, trainer

ROOT = Path(evaluation_jobs.__file__).parents[2]
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
    lock = only_one(run, "training")
    config = configs.reload(run.config)
    assert config.train is not None and config.train.steps is not None
    if behaviour.get("says"):
        print(behaviour["says"], flush=True)
    if behaviour.get("no_batches"):
        return 0
    writer, phases = metrics.MetricsWriter(run.metrics), PhaseWriter(run)
    found = checkpoints.newest_sound(run)
    step = 0 if found is None else found.step
    state = b"seed" if found is None else (found.path / "model.safetensors").read_bytes()
    while step < config.train.steps:
        time.sleep(behaviour["step_s"])
        step += 1
        state = blake3(state).digest()
        loss = math.nan if step == behaviour.get("nan_at") else 1 / step
        phases.set("step", step)
        writer.append(metrics.make_row("train/step", step, "train", {"train/loss": loss}))
        if step == behaviour.get("nan_at"):
            return 1
        if step == behaviour.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        is_stopped = run.stop.exists() and not behaviour.get("deaf")
        if step % config.train.checkpoint_every == 0 or is_stopped:
            save(run, step, state)
        if is_stopped:
            return 0
    lock.close()
    return 0


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
    time.sleep(behaviour["evaluation_s"])
    if step == behaviour.get("evaluation_fails_at"):
        raise ValueError("the weights do not fit")
    if step == behaviour.get("evaluation_dies_at"):
        os.kill(os.getpid(), signal.SIGKILL)
    result = {
        "task": task,
        "step": step,
        "checkpoint": str(run.checkpoint(step)),
        "metrics": {"top1": behaviour.get("top1", step / 100)},
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


def agent_main(folder: str) -> None:
    """The real agent with these two in the place of the real training and evaluation."""
    trainer.rank_command = lambda run: [sys.executable, "-m", "tests.supervision.fakes", str(run.path)]
    evaluation_jobs.JOB = "tests.supervision.fakes:evaluation_job"
    evaluations.TRIES = behaviour_of(RunFolder(Path(folder))).get("tries", evaluations.TRIES)
    agent.STOP_GRACE_S = behaviour_of(RunFolder(Path(folder))).get("stop_grace_s", agent.STOP_GRACE_S)
    agent.main(folder)


def evaluation_job(folder: str, step: str, task: str, question: str) -> None:
    evaluation_jobs.EVALUATE = "tests.supervision.fakes:evaluate"
    evaluation_jobs.run_job(folder, step, task, question)


if __name__ == "__main__":
    sys.exit(train(sys.argv[1]))
