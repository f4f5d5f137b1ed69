"""What the search for loader settings finds, and how long it takes, beside a sweep of every setting.

Of pictures with the CLIP training transform, by both readers, of the same as from a disk that answers after
LATENCY_S, and of conversations packed into rows. The training is taken for endlessly fast, so that nothing but the
loader's rate decides. The sweep measures each setting for SWEPT_S, as one would by hand. What search and sweep found
best is then measured in turns, since the best of many noisy figures flatters itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

from tasks.core import config as configs
from tasks.core.schema import Config
from tasks.dataset.version import versions
from tasks.diagnosis.bench import BATCH_S, searched, space_of
from tasks.diagnosis.measure import Bench, feed_of
from tasks.loader import forkserver
from tasks.loader.settings import Setting
from tasks.loader.workers import Transform
from tasks.models.recipes import load_recipe, module_of
from tests.benchmarks.bench_loader import SHARDS, realistic, version_of
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, value
from tests.conftest import ROOT

SWEPT_S, TURNS = 2.0, 5
LATENCY_S = 0.05
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


def compared(shape: str, folder: str, swept_s: float, most: int | None) -> Row:
    """One search and one sweep, of the first `most` settings; `rate` is what the search chose over the best that the
    sweep found, in turns."""
    config, version = SHAPES[shape](Path(folder))
    assert config.train is not None
    forkserver.start_forkserver(module_of(config.train))
    recipe = load_recipe(config.train)
    shapes = Distant(recipe) if config.name == "distant" else recipe
    bench = Bench(feed_of(config, version, shapes, prefetch=2), config.train.threads)
    with bench.batches(workers=1, batch_size=1) as batches:
        next(batches)  # the forkserver's imports are neither's
    began = time.perf_counter()
    space = space_of(config, version, bench, is_free=True)
    size = min(config.train.batch_size, bench.samples_within(BATCH_S))
    chosen, measurements = searched(bench, space, size, inf)
    search_s, began = time.perf_counter() - began, time.perf_counter()
    some = enumerate(islice(space, most), start=1000)
    swept = [bench.measure(setting, size, seed, swept_s) for seed, setting in some]
    sweep_s = time.perf_counter() - began
    best = [one.setting for one in sorted(swept, key=lambda one: one.samples_per_s, reverse=True)[:2]]
    finalists = list(dict.fromkeys([*best, chosen.setting]))
    rates: dict[Setting, list[float]] = {setting: [] for setting in finalists}
    for turn in range(TURNS):
        for setting in finalists[turn % len(finalists) :] + finalists[: turn % len(finalists)]:
            rates[setting].append(bench.measure(setting, size, 2000 + turn, swept_s).samples_per_s)
    medians = {setting: statistics.median(its) for setting, its in rates.items()}
    return {
        "rate": medians[chosen.setting] / max(medians[one] for one in best),
        "share": search_s / sweep_s,
        "search_s": search_s,
        "settings": len(measurements),
        "sweep_s": sweep_s,
        "swept": len(swept),
    }


SHAPES = {"pictures": pictures, "distant": distant, "conversations": conversations}
TITLES = {
    "pictures": "pictures",
    "distant": "pictures from a disk that answers after 50 ms",
    "conversations": "packed conversations",
}


def cases(setup: Setup) -> Iterator[Case]:
    for shape in setup.sized([*SHAPES], ["conversations"]):

        def search(shape: str = shape) -> Row:
            return call(compared, shape, setup.new_folder(), *setup.sized((SWEPT_S, None), (0.1, 3)))()

        yield Case(TITLES[shape], {"the search": search})


BENCHMARKS = (
    Benchmark(
        "search",
        "Tuning the loader",
        "What the search for loader settings finds, where nothing but the loader's rate counts, and how long it takes, "
        "beside a sweep that measures each setting for two seconds, as one would by hand. What both found best is then "
        "measured in five turns.",
        cases,
        (
            Column("rate", "rate over the sweep's best", ".2f"),
            Column("share", "time over the sweep's", ".3f"),
            Column("search_s", "s", ".1f"),
            Column("settings", "settings measured", ".0f"),
            Column("sweep_s", "s of the sweep", ".1f"),
            Column("swept", "settings in all", ".0f"),
        ),
        promises=(
            Promise("rate over the sweep's best", value("the search", "rate"), "at least", 0.95),
            Promise("time over the sweep's", value("the search", "share"), "at most", round(1 / 6, 3)),
        ),
        packages=("torch", "webdataset"),
        is_warm=False,
    ),
)
