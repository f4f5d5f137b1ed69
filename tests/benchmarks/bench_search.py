"""What the search for loader settings finds, and how long it takes, beside a sweep of every setting.

Of pictures with the CLIP training transform, by both readers, of the same as from a disk that answers after
LATENCY_S, and of conversations packed into rows. The training is taken for endlessly fast, so that nothing but the loader's rate decides. The sweep measures each
setting for SWEPT_S, as one would by hand. What search and sweep found best is then measured in turns, since
the best of many noisy figures flatters itself. The worst of several searches counts.

    .venv/bin/python -m tests.benchmarks.bench_search [SEARCHES [SHAPE...]]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from tasks.core import config as configs
from tasks.core.process import available_cores
from tasks.core.schema import Config
from tasks.dataset.version import versions
from tasks.diagnosis.bench import BATCH_S, searched, space_of
from tasks.diagnosis.measure import Bench, feed_of
from tasks.loader import forkserver
from tasks.loader.settings import Setting
from tasks.loader.workers import Transform
from tasks.models.recipes import load_recipe, module_of
from tests.benchmarks.bench_loader import SHARDS, realistic, version_of
from tests.conftest import ROOT

SEARCHES, SWEPT_S, TURNS = 3, 2.0, 5
LATENCY_S = 0.05
LEAST_RATE, MOST_TIME = 0.95, 1 / 6
PICTURES = 4_000


def pictures(folder: Path) -> tuple[Config, Path]:
    version_of(folder / "version", realistic(), PICTURES // SHARDS)
    source = {"kind": "table", "path": "t.csv", "image": "file", "caption": "caption"}
    dataset = {"output": str(folder / "version"), "modality": "image_text", "source": source}
    train = {"recipe": "clip", "model": {"name": "ViT-B-32"}, "batch_size": 64, "lr": 1e-3, "steps": 1}
    train["checkpoint_every"] = 1
    return Config.model_validate({"name": "b", "dataset": dataset, "train": train}), folder / "version"


def distant(folder: Path) -> tuple[Config, Path]:
    config, version = pictures(folder)
    return config.model_copy(update={"name": "distant"}), version


class Distant:
    """The recipe's transform, behind a wait."""

    def __init__(self, recipe: Any) -> None:
        self.collate, self._recipe = recipe.collate, recipe

    def transform(self, is_train: bool) -> Transform:
        return partial(_after_a_wait, self._recipe.transform(is_train))


def _after_a_wait(transform: Transform, sample: dict[str, bytes], generator_seed: int | None) -> Any:
    time.sleep(LATENCY_S)
    return transform(sample, generator_seed)


def conversations(folder: Path) -> tuple[Config, Path]:
    """Those of the example, 64 rows a batch."""
    path, tarmac = ROOT / "configs" / "digits-chat.yaml", Path(sys.executable).with_name("tarmac")
    for words in (["example", "digits-chat"], ["build", path]):
        subprocess.run([tarmac, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    os.chdir(folder)
    config = configs.load_config(path, ["train.batch_size=64"])
    return config, versions.resolve(config.dataset.output)


def compare(name: str, config: Config, version: Path, searches: int) -> bool:
    """Print what was found, and whether it keeps both promises."""
    assert config.train is not None
    forkserver.start_forkserver(module_of(config.train))
    recipe = load_recipe(config.train)
    shapes = Distant(recipe) if config.name == "distant" else recipe
    bench = Bench(feed_of(config, version, shapes, prefetch=2), config.train.threads)
    with bench.batches(workers=1, batch_size=1) as batches:
        next(batches)  # the forkserver's imports are neither's
    found, taken = [], []
    for _ in range(searches):
        began = time.perf_counter()
        space = space_of(config, version, bench, is_free=True)
        size = min(config.train.batch_size, bench.samples_within(BATCH_S))
        chosen, measurements = searched(bench, space, size, inf)
        taken.append(time.perf_counter() - began)
        found.append(chosen.setting)
        print(
            f"  search {taken[-1]:6.1f} s  {len(measurements):3} settings  {described(chosen.setting)}",
            flush=True,
        )
    began = time.perf_counter()
    swept = [bench.measure(setting, size, seed, SWEPT_S) for seed, setting in enumerate(space, start=1000)]
    sweep_s = time.perf_counter() - began
    ranked = sorted(swept, key=lambda one: one.samples_per_s, reverse=True)
    print(f"  sweep  {sweep_s:6.1f} s  {len(swept):3} settings  {described(ranked[0].setting)}", flush=True)
    finalists = list(dict.fromkeys([*(one.setting for one in ranked[:2]), *found]))
    rates: dict[Setting, list[float]] = {setting: [] for setting in finalists}
    for turn in range(TURNS):
        for setting in finalists[turn % len(finalists) :] + finalists[: turn % len(finalists)]:
            rates[setting].append(bench.measure(setting, size, 2000 + turn, SWEPT_S).samples_per_s)
    medians = {setting: statistics.median(its) for setting, its in rates.items()}
    for setting, median in medians.items():
        low, high = min(rates[setting]), max(rates[setting])
        print(f"  {described(setting):36} {median:8,.0f}/s ({low:,.0f} to {high:,.0f}) in turns")
    best = max(medians[one.setting] for one in ranked[:2])
    rate, share = min(medians[one] for one in found) / best, max(taken) / sweep_s
    print(f"{name}: rate {rate:.2f} of the sweep's best (at least {LEAST_RATE})")
    print(f"{name}: time 1/{1 / share:.1f} of the sweep's (at most 1/6), load {os.getloadavg()[0]:.1f}")
    return rate >= LEAST_RATE and share <= MOST_TIME


def described(setting: Setting) -> str:
    return f"{setting.workers} workers, {setting.prefetch} ahead, {setting.reader}"


def measure_shape(name: str, searches: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(not compare(name, *SHAPES[name](Path(folder)), searches))


SHAPES = {"pictures": pictures, "distant": distant, "conversations": conversations}


def main(searches: int = SEARCHES, *names: str) -> None:
    """Each shape in a process of its own, as its forkserver imports what one recipe needs. The process has no
    main module, which every worker would import anew."""
    print(f"{available_cores()} cores", flush=True)
    module, failed = "tests.benchmarks.bench_search", 0
    for name in names or SHAPES:
        code = f"from {module} import measure_shape; measure_shape({name!r}, {searches})"
        failed += subprocess.run([sys.executable, "-c", code], check=False).returncode
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
