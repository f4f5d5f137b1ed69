"""Seconds from the start of a process to the end of its first step, for each recipe's tiny model.

Beside the recipes stands open_clip by itself: its import, a model of the same size, and a step of torch's AdamW.

The other benchmark takes the seconds from the imports to the first batch of 8 workers, from an index of 10^4 samples
and from one of 10^7, whose rows lie in a sparse file: neither the index nor a list of files travels to a worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.benchmarks.harness import Benchmark, Case, Column, Command, Promise, Row, Setup, value

WORKERS, BATCH = 8, 256
INDEXES = {10**4: 10, 10**7: 1000}
"""Samples, and the shards that they lie in."""
RECIPES = ("clip", "clip_reinforced", "ct_clip", "vlm")
HERE = Path(__file__).resolve().parents[2]
PEER = """
import json, os, open_clip, torch
from open_clip.model import CLIP
sizes = json.loads(open("tasks/models/clip/tarmac-digits.json").read())
model = CLIP(**sizes)
optimizer = torch.optim.AdamW(model.parameters())
side, length = sizes["vision_cfg"]["image_size"], sizes["text_cfg"]["context_length"]
output = model(torch.zeros(4, 3, side, side), torch.ones(4, length, dtype=torch.long))
open_clip.ClipLoss()(*output[:3]).backward()
optimizer.step()
os._exit(0)
"""


def make(folder: Path) -> None:
    """Write a batch of each recipe, and the block `train` it is for."""
    import torch

    from tasks.models.recipes import load_recipe
    from tests.models import examples

    for name in RECIPES:
        train = examples.train_block(name)
        batch = examples.batch_of(load_recipe(train), name, is_train=True)
        torch.save(batch, folder / f"{name}.pt")
        (folder / f"{name}.json").write_text(train.model_dump_json(exclude_unset=True))


def start(folder: Path, name: str) -> None:
    """Take a step as a rank does that has just been started."""
    import importlib

    from tasks.core.schema import Train
    from tasks.models import late, recipes

    late.put_off_compiler()
    train = Train.model_validate(json.loads((folder / f"{name}.json").read_text()))
    importlib.import_module(recipes.module_of(train))

    import torch

    from tasks.training.devices import Device
    from tasks.training.step import Step

    recipe = recipes.load_recipe(train)
    step = Step(recipe, recipe.build_model(), train, Device(torch.device("cpu"), "fp32"))
    step(0, torch.load(folder / f"{name}.pt", weights_only=False))
    os._exit(0)  # the end of an interpreter is no part of a start


def first_batch(version: Path) -> None:
    """Print the seconds that a feed takes from its making to its first batch."""
    from tasks.loader import forkserver
    from tests.loader import transforms

    forkserver.fork(transforms.__name__)

    from tests.loader.feeds import train_batches

    began = time.perf_counter()
    with train_batches(version, transforms.plain, batch_size=BATCH, workers=WORKERS, seed=3) as batches:
        assert len(next(batches)["key"]) == BATCH
        print(time.perf_counter() - began)


def seconds_of(command: Sequence[object]) -> Row:
    """A process as a whole, from the root of the repository."""
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, *map(str, command)],
        check=True,
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE)},
    )
    return {"s": time.perf_counter() - began}


def recipe_cases(setup: Setup) -> Iterator[Case]:
    folder = setup.new_folder()
    seconds_of([__file__, "make", folder])
    for recipe in setup.sized(RECIPES, RECIPES[:1]):
        ours = partial(seconds_of, [__file__, "start", folder, recipe])
        yield Case(recipe, {"tarmac": ours, "open_clip alone": partial(seconds_of, ["-c", PEER])})


def index_cases(setup: Setup) -> Iterator[Case]:
    for samples, shards in INDEXES.items():
        place = setup.new_folder()
        write = f"import tests.soak.billion as b, pathlib; b.write(pathlib.Path({str(place)!r}), {samples}, {shards})"
        seconds_of(["-c", write])
        first = Command([sys.executable, __file__, "first", place], ("s",), {"PYTHONPATH": str(HERE)})
        yield Case(f"{samples:,} samples", {"tarmac": first})


BENCHMARKS = (
    Benchmark(
        "start",
        "From the start of a process to its first step",
        "A rank with the recipe's tiny model, from the start of its process to the end of its first step. Beside it is "
        "open_clip by itself: its import, a model of the size of the recipe `clip`'s, and a step of torch's AdamW.",
        recipe_cases,
        (Column("s", "s", ".2f"),),
        packages=("torch", "open_clip_torch", "transformers"),
        ratio="s",
        is_time=True,
        rounds=9,
    ),
    Benchmark(
        "first_batch",
        "The first batch of a large dataset",
        "Eight workers and batches of 256, from the making of the loader to its first batch; the imports do not count. "
        "The index's rows lie in a sparse file.",
        index_cases,
        (Column("s", "s", ".2f"),),
        promises=(Promise("the first batch", value("tarmac", "s"), "at most", 1.0, unit="s"),),
        packages=("torch",),
        rounds=9,
    ),
)


if __name__ == "__main__":
    word, *given = sys.argv[1:]
    if word == "make":
        make(Path(given[0]))
    elif word == "start":
        start(Path(given[0]), given[1])
    else:
        first_batch(Path(given[0]))
