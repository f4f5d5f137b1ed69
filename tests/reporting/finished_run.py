"""A run folder as a finished pipeline leaves it, made in a second by the real writers of its files, without a training."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tasks.core import config as configs
from tasks.core.files import link_atomic
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.version.manifest import read_manifest
from tasks.dataset.version.versions import publish
from tasks.evaluation import results
from tasks.evaluation.expected import wanted_of
from tasks.evaluation.results import EvaluationResult, Prediction
from tasks.evaluation.samples import Formula, JudgedSamples
from tasks.loader.indexed import IndexedReader
from tasks.loader.settings import LoaderSettings, Measurement, write_settings
from tasks.runs import ledger, record
from tasks.runs.folder import RunFolder
from tasks.runs.ledger import LedgerEntry
from tasks.runs.metrics import MetricsWriter, make_row
from tasks.runs.plan import plan
from tasks.runs.record import Attempt

STEPS = 600
NAMES = ("zero", "one", "two")


def write_raw(folder: Path, captions: list[str]) -> Path:
    """One small grey image a caption, one image that is none, and the table of all."""
    (folder / "images").mkdir(parents=True)
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["file", "caption", "label"])
        for number, caption in enumerate(captions):
            Image.new("L", (8, 8), number % 256).save(folder / f"images/{number:04d}.png")
            table.writerow([f"images/{number:04d}.png", caption, NAMES[number % 3]])
        (folder / "images/broken.png").write_text("no image")
        table.writerow(["images/broken.png", "a digit", "zero"])
    return folder / "captions.csv"


def make_config(folder: Path, captions: list[str], **dataset: Any) -> Config:
    values = {
        "name": "digits-clip",
        "runs": str(folder / "runs"),
        "dataset": {
            "output": str(folder / "data"),
            "modality": "image_text",
            "source": {
                "kind": "table",
                "path": str(write_raw(folder / "raw", captions)),
                "image": "file",
                "caption": "caption",
            },
            "splits": {"val": 0.5},
            **dataset,
        },
        "train": {
            "recipe": "clip",
            "model": {"name": "tarmac/digits"},
            "batch_size": 64,
            "steps": STEPS,
            "lr": 1e-3,
            "warmup": 50,
            "checkpoint_every": 200,
        },
        "evaluate": {"every": 200, "tasks": ["zero_shot"]},
        "engine": {"build": {"kind": "local", "workers": 1}},
    }
    return configs.validate(values, "test")


def finished_run(folder: Path, captions: list[str] | None = None, **dataset: Any) -> RunFolder:
    """A run of 600 steps that succeeded, with three evaluations and a dataset of one reject."""
    config = make_config(folder, captions or [f"a photo of a {NAMES[n % 3]}" for n in range(60)], **dataset)
    version = build(config).version
    publish(config.dataset.output, version, keep=1)
    run = plan(config, version)
    settings = LoaderSettings(
        workers=1,
        prefetch=4,
        reason="1 worker: within 10 % of the fastest",
        taken_per_s=1310.0,
        reached_per_s=1240.0,
        measurements=(
            Measurement(workers=0, samples_per_s=1920.0, first_batch_s=0.04),
            Measurement(workers=1, samples_per_s=3301.0, first_batch_s=2.9),
            Measurement(workers=2, samples_per_s=3410.0, first_batch_s=3.1),
        ),
    )
    write_settings(run.loader, settings)
    write_metrics(run, every=10)
    for step, accuracy in ((200, 0.85), (400, 0.93), (600, 0.957)):
        run.checkpoint(step).mkdir(parents=True)
        write_evaluation(run, version, step, accuracy)
    for want in wanted_of(run.id, configs.reload(run.config)):
        ledger.append(
            run.ledger, LedgerEntry(want.uid, want.step, want.task, "done", None, 1, 1_763_630_760.0)
        )
    link_atomic(run.best, run.checkpoint(600).name)
    attempt = Attempt(
        started=1_763_630_700.0,
        ended=1_763_630_783.0,
        host="node7",
        boot_id="b",
        pid=4711,
        pid_started=1.0,
        job="local 4711",
        code_digest="77ab12cd99ef",
        versions={"torch": "2.15.0"},
        outcome="succeeded",
    )
    record.save_record(run, record.load_record(run).having(state="succeeded", attempts=[attempt]))
    return run


def write_metrics(run: RunFolder, every: int = 10, steps: int = STEPS) -> None:
    writer = MetricsWriter(run.metrics)
    for step in range(every, steps + 1, every):
        values = {
            "train/loss": 0.2 + 3.9 * math.exp(-step / 110),
            "train/lr": 1e-3 * (1 - step / steps / 2),
            "train/samples_per_s": 900.0,
            "train/data_wait": 0.006,
            "train/step_s": 0.07,
        }
        writer.append(make_row("train/step", step, "train", values))
        if step % 200 == 0:
            writer.append(
                make_row("train/step", step, "val", {"val/loss": 0.4 + 3.9 * math.exp(-step / 110)})
            )


def write_evaluation(run: RunFolder, version: Path, step: int, accuracy: float) -> None:
    """A result whose first prediction is wrong and whose others are right, and what each sample contributed."""
    reader = IndexedReader(version, "val")
    keys = [reader.read(position).key for position in range(min(24, len(reader)))]
    predictions = [
        Prediction(key=key, label="two", predicted="one" if n == 0 else "two") for n, key in enumerate(keys)
    ]
    result = EvaluationResult(
        task="zero_shot",
        step=step,
        checkpoint=f"checkpoints/step_{step:08d}",
        metrics={"top1": accuracy, "mean_per_class": accuracy - 0.01},
        intervals={"top1": (accuracy - 0.03, accuracy + 0.02)},
        chance={"top1": 0.1},
        split="val",
        samples=read_manifest(version).splits["val"].samples,
        seconds=1.5,
        versions={"torch": "2.15.0"},
    )
    held_out = [reader.read(position).key for position in range(len(reader))]
    hits = np.array([float(n > 0) for n in range(len(held_out))])
    judged = JudgedSamples(
        held_out, {"top1": hits}, {"top1": Formula("mean", ["top1"])}, data=f"{version.name} val"
    )
    results.write_result(run, result, predictions, by_sample=judged.to_bytes())
