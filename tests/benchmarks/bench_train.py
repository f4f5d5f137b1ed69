"""Whole trainings a second, beside open_clip's own trainer: the same model, shards, batches and threads.

Each measurement is a process of its own, both take turns, and what counts is the steps after the first ones:
loading, forward, backward, optimizer, and the rows of metrics. Ours also keeps a sign of life, checks each
sample's CRC32C and can resume to the bit. Run it on an idle machine. The pictures are handwritten digits, as
they are, and as JPEGs of 256 x 256 pixels, where loading limits the training.

    .venv/bin/python -m tests.benchmarks.bench_train [ROUNDS]

The raw digits are written and built in a temporary folder; nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
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
from tests.benchmarks import results
from tests.conftest import digits_config

ROUNDS = 5
PROMISED = {None: 1.0, 256: 1.2}
"""Our samples per second over open_clip's, by the side of the pictures; None leaves them as they are."""
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


def ours(digits: Digits, setting: Setting) -> float:
    """Samples a second."""
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
    return statistics.median(row["train/samples_per_s"] for row in found[2:])


def open_clips(digits: Digits, setting: Setting) -> float:
    """Samples a second of open_clip_train.main."""
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
    return setting.batch_size / statistics.median(seconds[2:])


def beside(
    digits: Digits, setting: Setting, rounds: int, *, compiles: bool = False
) -> dict[str, list[float]]:
    """The samples a second of each, measured in turns; with `compiles` those of ours compiled too."""
    measures = {"tarmac": lambda: ours(digits, setting), "open_clip": lambda: open_clips(digits, setting)}
    if compiles:
        measures["compiled"] = lambda: ours(digits, replace(setting, compile=True))
    rates: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            rates[name].append(measure())
    return rates


def _shown(setting: Setting) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": ""} if setting.device == "cpu" else {}


def _call(command: list[str], environment: dict[str, str]) -> str:
    """What it printed; its last lines on standard error where it failed."""
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        sys.stderr.write(done.stdout[-4000:])
        done.check_returncode()
    return done.stdout


def main(rounds: int) -> None:
    for side, promised in PROMISED.items():
        folder = Path(tempfile.mkdtemp())
        try:
            setting = Setting()
            rates = beside(Digits.made_in(folder, side), setting, rounds)
        finally:
            shutil.rmtree(folder)
        medians = {name: statistics.median(found) for name, found in rates.items()}
        ratio = medians["tarmac"] / medians["open_clip"]
        case = "digits as they are" if side is None else f"digits as JPEG of {side} x {side}"
        print(f"{case}: batch {setting.batch_size}, {setting.workers} worker, load {results.load():.1f}")
        for name, found in rates.items():
            print(f"  {name:10} {medians[name]:7,.0f} samples/s   {min(found):,.0f} to {max(found):,.0f}")
        verdict = "kept" if ratio >= promised else "NOT KEPT"
        print(f"  {ratio:.2f} x, promised {promised:.2f} x: {verdict} (median of {rounds})", flush=True)
        rows = {name: {"samples_per_s": rate} for name, rate in medians.items()}
        results.save("clip_training", case, rows, rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
