"""Seconds from the start of a process to the end of its first step, for each recipe's tiny model.

Every measurement is a process of its own; the contenders take turns. Beside them stands open_clip by itself:
its import, a model of the same size, and a step of torch's AdamW. With another checkout of Tarmac as argument
its code starts as well, in this environment:

    .venv/bin/python -m tests.benchmarks.bench_start [CHECKOUT]

With `samples`, the seconds from the imports to the first batch of 8 workers, from an index of 10^4 samples and from
one of 10^7, whose rows lie in a sparse file: neither the index nor a list of files travels to a worker.

    .venv/bin/python -m tests.benchmarks.bench_start samples
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 9
WORKERS, BATCH = 8, 256
INDEXES = {10**4: 10, 10**7: 1000}
"""Samples, and the shards that they lie in."""
PROMISED_S = 1.0
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
    from tasks.models import recipes

    try:
        from tasks.models import late
    except ImportError:  # of a checkout that imports all
        pass
    else:
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


def compare_indexes(place: Path) -> None:
    """Print the medians of `first_batch` for each of INDEXES."""
    taken: dict[int, list[float]] = {samples: [] for samples in INDEXES}
    for samples, shards in INDEXES.items():
        (place / f"{samples}").mkdir()
        write = f"import tests.soak.billion as b, pathlib; b.write(pathlib.Path.cwd(), {samples}, {shards})"
        run(place / f"{samples}", "-c", write)
    for _ in range(ROUNDS):
        for samples, times in taken.items():
            command = [sys.executable, __file__, "first", place / f"{samples}"]
            environment = {**os.environ, "PYTHONPATH": str(HERE)}
            done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
            times.append(float(done.stdout))
    for samples, times in taken.items():
        print(
            f"{samples:,} samples, {WORKERS} workers: first batch in {statistics.median(times):.2f} s",
            end=", ",
        )
        print(f"{min(times):.2f} to {max(times):.2f}, promised {PROMISED_S}; load {os.getloadavg()[0]:.1f}")


def run(checkout: Path, *command: str) -> float:
    """Return the seconds of a process with the checkout's code."""
    began = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), str(HERE)])}
    subprocess.run([sys.executable, *command], check=True, cwd=checkout, env=environment)
    return time.perf_counter() - began


def main(checkouts: dict[str, Path]) -> None:
    with tempfile.TemporaryDirectory() as place:
        for name, checkout in checkouts.items():
            (Path(place) / name).mkdir()
            run(checkout, __file__, "make", f"{place}/{name}")
        for recipe in RECIPES:
            taken: dict[str, list[float]] = {name: [] for name in (*checkouts, "open_clip")}
            for number in range(ROUNDS + 1):
                for name, times in taken.items():
                    command = [__file__, "start", f"{place}/{name}", recipe]
                    if name == "open_clip":
                        command = ["-c", PEER]
                    measured = run(checkouts.get(name, HERE), *command)
                    if number:  # the first round warms the page cache
                        times.append(measured)
            medians = {name: statistics.median(times) for name, times in taken.items()}
            ratios = [f"{medians['here'] / s:.2f} x {name}'s {s:.2f} s" for name, s in medians.items()]
            print(f"{recipe}: {medians['here']:.2f} s: {', '.join(ratios[1:])}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        make(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["start"]:
        start(Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["first"]:
        first_batch(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["samples"]:
        with tempfile.TemporaryDirectory(prefix="tarmac-start-") as place:
            compare_indexes(Path(place))
    else:
        main({"here": HERE, **{Path(path).name: Path(path).resolve() for path in sys.argv[1:2]}})
