"""What a GPU has to prove, in one script: needs the package and one device, neither Prefect nor a network.

    .venv/bin/python -m tests.benchmarks.bench_cuda [--model ViT-B-32 --batch 256 --steps 200 --rounds 5]

On one batch of random pictures and captions, with each precision: the loss curve, the step time with
determinism on and off, the peak memory, and whether a training that is taken up halfway ends in the same bits
(with fp16, whose loss scale is taken up too). On the digits, through the loader: how much of its time the
device waits, by CUDA events; and samples a second beside open_clip_train, whole trainings in turns. All of it
goes into a JSON file named by the card, which is committed.

Without a GPU it says so and exits with 2. `--device cpu` runs all of it on the CPU, in a minute with small
numbers, to show that it works; what it measures there means nothing.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.core.schema import Train
from tasks.loader.feed import Data, Feed
from tasks.models import recipes
from tasks.training import devices
from tasks.training.devices import Device
from tasks.training.step import Step
from tests.benchmarks.bench_train import Digits, Setting, beside

RESULTS = Path(__file__).parent / "results"
PROMISED = 1.05
"""Samples a second over open_clip_train's."""
NO_GPU = (
    "bench_cuda: there is no GPU that torch can use, so nothing is measured; --device cpu shows that it works"
)


def train_block(setting: Setting) -> Train:
    return Train.model_validate(
        {
            "recipe": "clip",
            "model": {"name": setting.model},
            "batch_size": setting.batch_size,
            "steps": setting.steps,
            "lr": 1e-4,
            "warmup": min(10, setting.steps // 2),
            "checkpoint_every": setting.steps,
            "precision": setting.precision,
            "deterministic": setting.deterministic,
            "threads": setting.threads,
        }
    )


class Bench:
    """One setting on one device, and the batch that it takes steps on."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.options = train_block(setting)
        self.recipe = recipes.load_recipe(self.options)
        self.device = devices.choose(self.options)
        if setting.device == "cpu":
            self.device = Device(torch.device("cpu"), setting.precision)
        self.batch = self.device.put(self._random_batch())

    def new_step(self) -> Step:
        torch.manual_seed(0)
        model = self.recipe.build_model(pretrained=False).to(self.device.torch)
        return Step(self.recipe, model, self.options, self.device)

    def _random_batch(self) -> dict[str, Any]:
        """Pictures of noise, each with a caption of its own, so that a loss can fall."""
        size = self.setting.batch_size
        generator = torch.Generator().manual_seed(1)
        task: Any = self.recipe.task(self.recipe.build_model(pretrained=False))
        sides = _sides(self.recipe)
        return {
            "key": [str(number) for number in range(size)],
            "image": torch.randint(0, 256, (size, *sides, 3), generator=generator, dtype=torch.uint8),
            "text": task.tokenize([f"picture {number}" for number in range(size)]),
        }


class Clock:
    """Milliseconds of pieces of work on the device, and of the whole from the first to the last of them."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._marks: list[tuple[Any, Any]] = []

    def over(self, work: Callable[[], Any]) -> Any:
        began = self._mark()
        found = work()
        self._marks.append((began, self._mark()))
        return found

    def each(self) -> list[float]:
        self._settle()
        return [self._between(*marks) for marks in self._marks]

    def whole(self) -> float:
        self._settle()
        return self._between(self._marks[0][0], self._marks[-1][1])

    def _mark(self) -> Any:
        if not self._device.is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _settle(self) -> None:
        if self._device.is_cuda:
            torch.cuda.synchronize()

    def _between(self, began: Any, ended: Any) -> float:
        if not self._device.is_cuda:
            return float(ended - began) * 1e3
        return float(began.elapsed_time(ended))


def curve(setting: Setting) -> dict[str, Any]:
    """Losses, step time and peak memory of a training on one batch."""
    bench = Bench(setting)
    if bench.device.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    step, clock, losses = bench.new_step(), Clock(bench.device), []
    for number in range(setting.steps):
        taken = clock.over(lambda number=number: step(number, bench.batch))
        is_skipped = taken.overflow is not None and bool(taken.overflow.is_skipped)
        losses.append(math.nan if is_skipped else float(taken.loss))
    return {
        "losses": [None if math.isnan(loss) else round(loss, 5) for loss in losses],
        "skipped": sum(map(math.isnan, losses)),
        "step_ms": round(statistics.median(clock.each()[setting.steps // 4 :]), 3),
        "peak_bytes": bench.device.memory().get("system/gpu_bytes"),
    }


def resumes_to_the_bit(setting: Setting) -> dict[str, Any]:
    """Whether weights, optimizer and loss scale are those of an undisturbed training after one that began
    halfway from its saved state."""
    bench, half = Bench(setting), setting.steps // 2
    undisturbed = bench.new_step()
    taken_steps(undisturbed, bench.batch, range(half))
    saved = copy.deepcopy({"model": undisturbed.model.state_dict(), "state": undisturbed.state()})
    taken_steps(undisturbed, bench.batch, range(half, setting.steps))
    resumed = bench.new_step()
    resumed.model.load_state_dict(saved["model"])
    resumed.load(saved["state"])
    taken_steps(resumed, bench.batch, range(half, setting.steps))
    ends = [[*tensors(one.model.state_dict()), *tensors(one.state())] for one in (undisturbed, resumed)]
    return {
        "same_bits": all(map(torch.equal, *ends)),
        "tensors": len(ends[0]),
        "loss_scale": undisturbed.state().get("scaler", {}).get("scale"),
        "same_scale": undisturbed.state().get("scaler") == resumed.state().get("scaler"),
    }


def taken_steps(step: Step, batch: Mapping[str, Any], numbers: Iterable[int]) -> None:
    for number in numbers:
        step(number, batch)


def tensors(values: Any) -> Iterator[Tensor]:
    """All in a nested state, in its order."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from itertools.chain.from_iterable(map(tensors, values.values()))


def waiting(setting: Setting, digits: Digits) -> dict[str, float]:
    """The share of its time in which the device has nothing to do, in a training through the loader."""
    bench = Bench(setting)
    feed = Feed(
        (Data(digits.version),),
        bench.recipe,
        setting.batch_size,
        workers=setting.workers,
        pin_memory=bench.device.is_cuda,
    )
    step, clock = bench.new_step(), Clock(bench.device)
    with feed.train() as batches:
        for number in range(setting.steps):
            batch = next(batches)
            if number < 5:  # workers and kernels start
                step(number, bench.device.put(batch))
            else:
                clock.over(lambda number=number, batch=batch: step(number, bench.device.put(batch)))
    whole = clock.whole()
    rate = setting.batch_size * len(clock.each()) / whole * 1e3
    return {"idle": round(1 - sum(clock.each()) / whole, 4), "samples_per_s": round(rate, 1)}


def measure(setting: Setting, rounds: int) -> dict[str, Any]:
    """Everything, as the JSON file holds it."""
    found: dict[str, Any] = {
        "card": card(setting),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "cores": os.cpu_count(),
        "setting": asdict(setting),
        "curves": {},
        "fast": {},
        "resumed": {},
    }
    for precision in ("fp32", "bf16", "fp16"):
        exact = Setting(**{**asdict(setting), "precision": precision})
        fast = Setting(**{**asdict(exact), "deterministic": False})
        found["curves"][precision] = say(f"{precision}, deterministic", curve(exact))
        found["fast"][precision] = say(f"{precision}, not deterministic", curve(fast))
        found["resumed"][precision] = say(f"{precision}, taken up halfway", resumes_to_the_bit(exact))
    with tempfile.TemporaryDirectory() as folder:
        digits = Digits.made_in(Path(folder))
        quick = Setting(**{**asdict(setting), "precision": "bf16", "deterministic": False})
        found["device"] = say("through the loader", waiting(quick, digits))
        rates = say("beside open_clip_train", beside(digits, quick, rounds))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["tarmac"] / medians["open_clip"]
    found["beside"] = {"rates": rates, "ratio": round(ratio, 3), "promised": PROMISED}
    found["kept"] = {
        "exact resume": all(one["same_bits"] and one["same_scale"] for one in found["resumed"].values()),
        "samples a second": ratio >= PROMISED,
    }
    return found


def say(name: str, found: Any) -> Any:
    shown = {key: value for key, value in found.items() if key != "losses"}
    print(f"{name}: {json.dumps(shown)}", flush=True)
    return found


def card(setting: Setting) -> str:
    return "cpu" if setting.device == "cpu" else torch.cuda.get_device_name()


def _sides(recipe: Any) -> tuple[int, int]:
    """Of the model's pictures, in pixels."""
    size = recipe.preprocessing.size
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What a GPU has to prove.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="ViT-B-32", help="any that open_clip knows, or tarmac/digits")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the JSON file; one named by the card unless given")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(NO_GPU + "\n")
        return 2
    setting = Setting(
        given.device, given.model, given.batch, given.steps, given.workers, given.threads, "fp32", True
    )
    found = measure(setting, given.rounds)
    name = re.sub(r"[^A-Za-z0-9]+", "-", found["card"]).strip("-").lower()
    out = given.out or RESULTS / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{found['kept']}; all figures are in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
