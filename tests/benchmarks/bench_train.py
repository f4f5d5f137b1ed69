"""Whole trainings a second, beside open_clip's own trainer: the same model, shards, batches and threads.

What counts is the steps after the first ones: loading, forward, backward, optimizer, and the rows of metrics. Ours
also keeps a sign of life, checks each sample's CRC32C and can resume to the bit. The pictures are handwritten digits,
as they are, and as JPEGs of 256 x 256 pixels, where loading limits the training. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image

from tasks.core.schema import Config
from tasks.dataset import examples
from tasks.dataset.building.builder import build
from tasks.dataset.version import versions
from tasks.loader.settings import LoaderSettings, write_settings
from tasks.runs import metrics
from tasks.runs.environment import rank_environment
from tasks.runs.plan import plan
from tests.benchmarks.harness import Benchmark, Case, Column, Failed, Promise, Row, Setup, times
from tests.conftest import digits_config

AS_THEY_ARE, AS_JPEG = "digits as they are", "digits as JPEG of 256 x 256"
LOGGED = 10
"""Steps per measurement; the first two are left out, in which workers and kernels start."""
PRECISIONS = {"fp32": "fp32", "bf16": "amp_bf16", "fp16": "amp"}
"""Ours, and open_clip's names for the same."""
TINY = Path(__file__).parents[2] / "tasks" / "models" / "clip" / "tarmac-digits.json"


@dataclass(frozen=True)
class Setting:
    """What both train: `model` is `tarmac/digits` or a model that open_clip knows by name."""

    device: str = "cpu"
    model: str = "tarmac/digits"
    batch_size: int = 256
    steps: int = 80
    workers: int = 1
    threads: int = 1
    precision: str = "fp32"
    deterministic: bool = True
    compile: bool = False


@dataclass(frozen=True)
class Digits:
    """The built digits, with the config that built them."""

    folder: Path
    version: Path

    @classmethod
    def made_in(cls, folder: Path, side: int | None = None) -> Digits:
        examples.write_example("digits", folder / "raw")
        for path in (folder / "raw").rglob("*.png") if side is not None else ():
            picture = Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BICUBIC)
            picture.save(path, "JPEG", quality=90)  # its first bytes tell the format
        config = digits_config(folder / "raw", folder)
        versions.publish(config.dataset.output, build(config).version, keep=3)
        return cls(folder, versions.resolve(config.dataset.output))

    def config(self, runs: Path, *overrides: str) -> Config:
        return digits_config(self.folder / "raw", self.folder, f"runs={runs}", "evaluate=null", *overrides)


def ours(digits: Digits, setting: Setting) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        config = digits.config(
            Path(folder),
            f"train.model.name={setting.model}",
            f"train.batch_size={setting.batch_size}",
            f"train.steps={setting.steps}",
            f"train.checkpoint_every={setting.steps}",
            f"train.log_every={LOGGED}",
            f"train.threads={setting.threads}",
            f"train.precision={setting.precision}",
            f"train.deterministic={str(setting.deterministic).lower()}",
            f"train.compile={str(setting.compile).lower()}",
        )
        run = plan(config, digits.version)
        write_settings(run.loader, LoaderSettings(workers=setting.workers, prefetch=2, reason="a benchmark"))
        assert config.train is not None
        _call(
            [sys.executable, "-m", "tasks.training.rank", str(run.path)],
            {**rank_environment(config.train), **_shown(setting)},
        )
        found = metrics.rows_of(metrics.read_metrics(run.metrics)[0], "train")
    return {"samples_per_s": statistics.median(row["train/samples_per_s"] for row in found[2:])}


def open_clips(digits: Digits, setting: Setting) -> Row:
    """By open_clip_train.main."""
    shards = sorted((digits.version / "train").glob("*.tar"))
    with tempfile.TemporaryDirectory() as folder:
        model = setting.model
        if model == "tarmac/digits":
            known = {"model_cfg": json.loads(TINY.read_text()), "preprocess_cfg": {}}
            (Path(folder) / "open_clip_config.json").write_text(json.dumps(known))
            model = f"local-dir:{folder}"
        arguments = {
            "model": model,
            "train-data": f"{digits.version}/train/{{{shards[0].stem}..{shards[-1].stem}}}.tar",
            "train-num-samples": setting.batch_size * setting.steps,
            "batch-size": setting.batch_size,
            "workers": setting.workers,
            "precision": PRECISIONS[setting.precision],
            "device": setting.device,
            "epochs": 1,
            "warmup": 50,
            "lr": 1e-3,
            "log-every-n-steps": LOGGED,
            "logs": folder,
        }
        options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
        threads = {"OMP_NUM_THREADS": str(setting.threads), "OMP_WAIT_POLICY": "PASSIVE"}
        said = _call(
            [sys.executable, "-m", "open_clip_train.main", *options, "--dataset-resampled"],
            {**os.environ, **threads, **_shown(setting)},
        )
    seconds = [float(found) for found in re.findall(r"Batch \(t\): ([\d.]+)", said)]
    return {"samples_per_s": setting.batch_size / statistics.median(seconds[2:])}


def _shown(setting: Setting) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ""} if setting.device == "cpu" else {}


def _call(command: list[str], environment: dict[str, str]) -> str:
    """What it printed, errors included."""
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise Failed(f"{' '.join(command)[:200]} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def cases(setup: Setup) -> Iterator[Case]:
    setting = Setting(steps=setup.sized(80, 20))
    for name, side in ((AS_THEY_ARE, None), (AS_JPEG, 256))[: setup.sized(2, 1)]:
        digits = Digits.made_in(setup.new_folder(), side)
        yield Case(
            name,
            {"tarmac": partial(ours, digits, setting), "open_clip": partial(open_clips, digits, setting)},
        )


OVER = times("samples_per_s", "tarmac", "open_clip")
BENCHMARKS = (
    Benchmark(
        "clip_training",
        "Training a CLIP",
        "Steps of whole trainings, beside `open_clip_train.main`: the same small model, shards, batch of 256, one "
        "worker and one thread. Pictures of 256 x 256 pixels make loading the limit.",
        cases,
        (Column("samples_per_s", "samples/s"),),
        promises=(
            Promise("samples/s over open_clip's", OVER, "at least", 1.0, cases=(AS_THEY_ARE,)),
            Promise("samples/s over open_clip's", OVER, "at least", 1.2, cases=(AS_JPEG,)),
        ),
        packages=("torch", "pillow", "simplejpeg", "numpy", "open_clip_torch", "webdataset"),
        ratio="samples_per_s",
        plot="samples_per_s",
    ),
)
