"""What a GPU has to prove, in one script: needs the package and one device, neither Prefect nor a network.

    .venv/bin/python -m tests.benchmarks.bench_cuda [--model ViT-B-32 --batch 256 --steps 100 --rounds 2]

For each recipe, on a batch of noise: whether two deterministic trainings, and one that is taken up halfway (fp16's
loss scale too), end in the same bits; how often a step makes the host wait; the time of a step with determinism,
without it, compiled and with activations computed again; and the peak memory beside what `tarmac plan` says. For CLIP
also the loss curve in each precision, and a step's time beside a plain loop over open_clip's model, both compiled
and not. For packed conversations attention of variable length beside the mask. On the digits, through the loader: how
much of its time the device waits, and samples a second beside open_clip_train, whole trainings in turns.

All of it goes into a JSON file named by the card, which is committed; it is written after each part, so a run that
is cut off leaves what it had. Without a GPU it says so and exits with 2. `--device cpu` runs all of it on the CPU, in
minutes with small numbers, to show that it works; what it measures there means nothing.
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
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import open_clip
import torch
from torch import Tensor

from tasks.core.schema import Train
from tasks.loader.feed import Data, Feed
from tasks.models import recipes
from tasks.models.clip.pictures import normalised
from tasks.models.precision import autocast
from tasks.models.vlm import attention
from tasks.training import devices
from tasks.training.devices import Device, Uploads
from tasks.training.fake_step import footprint_on
from tasks.training.ranks import ALONE
from tasks.training.step import Step
from tests.benchmarks.bench_train import Digits, Setting, open_clips, ours
from tests.benchmarks.harness import Absent, Benchmark, Case, Column, Command, Promise, Row, Setup, value
from tests.models.examples import MODELS, TRAINED, written_parts

RESULTS = Path(__file__).parent / "results"
PROMISED, PROMISED_COMPILED = 1.05, 1.3
"""Samples a second over open_clip_train's."""
MEMORY = 0.15
"""By how much the peak memory may differ from what is said beforehand."""
BITS = 6
"""Steps of each training whose bits are compared."""
TIMED = 20
"""Steps that are timed, after a few that are not."""
TOWER = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 512,
    "patch_size": 16,
}
LANGUAGE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
"""Of nanoVLM-222M: SigLIP B/16 at 512 pixels, SmolLM2-135M."""
NO_GPU = (
    "bench_cuda: there is no GPU that torch can use, so nothing is measured; --device cpu shows that it works"
)


def blocks(setting: Setting, folder: Path) -> dict[str, dict[str, Any]]:
    """What each recipe trains: on a GPU models of a usual size, with weights of noise."""
    if setting.device == "cpu":
        packed = {"vlm": {"pack": {"tokens": 256, "images": 4}}}
        return {
            name: {"model": MODELS[name], "batch_size": 8, "micro_batch": None, **packed.get(name, {})}
            for name in TRAINED
        }
    teachers = [{"width": 768, "logit_scale": 50.0}, {"width": 768, "logit_scale": 60.0}]
    parts = written_parts(folder, TOWER, LANGUAGE)
    return {
        "clip": {"model": {"name": setting.model}, "batch_size": setting.batch_size},
        "clip_reinforced": {
            "model": {"name": setting.model, "teachers": teachers},
            "batch_size": setting.batch_size,
        },
        "ct_clip": {"model": {"vision": "ctvit", "shape": [120, 240, 240]}, "batch_size": 4},
        "vlm": {
            "model": {**parts, "pixel_shuffle": 4, "max_side": 1024},
            "batch_size": 4,
            "pack": {"tokens": 2048, "images": 16},
        },
    }


class Bench:
    """A training's block on a device, and a batch of noise that it takes steps on."""

    def __init__(self, setting: Setting, block: Mapping[str, Any], **keys: Any) -> None:
        usual = {
            "steps": setting.steps,
            "lr": 1e-4,
            "warmup": min(10, setting.steps // 2),
            "checkpoint_every": setting.steps,
            "precision": setting.precision,
            "deterministic": setting.deterministic,
            "threads": setting.threads,
        }
        self.train = Train.model_validate({**usual, **block, **keys})
        self.recipe: Any = recipes.load_recipe(self.train)
        self.device = devices.choose(self.train)
        if setting.device == "cpu":
            self.device = Device(torch.device("cpu"), self.train.precision)
        self.batch = self.device.put(self._noise())

    def new_step(self) -> Step:
        torch.manual_seed(0)
        model = self.recipe.build_model(pretrained=False).to(self.device.torch)
        return Step(self.recipe, model, self.train, self.device)

    def _noise(self) -> dict[str, Any]:
        """The example of the recipe with noise in it; whatever has an order keeps it."""
        generator = torch.Generator().manual_seed(1)
        batch: dict[str, Any] = dict(self.recipe.example(self.train.batch_size, self.train.pack))
        for name, tensor in batch.items():
            if not isinstance(tensor, Tensor):
                continue
            if tensor.dtype == torch.uint8:
                batch[name] = torch.randint(0, 256, tensor.shape, generator=generator, dtype=tensor.dtype)
            elif tensor.is_floating_point():
                batch[name] = torch.randn(tensor.shape, generator=generator)
            elif name in ("text", "synthetic", "volume"):
                batch[name] = torch.randint(1, 1000, tensor.shape, generator=generator, dtype=tensor.dtype)
        return batch


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


def curve(setting: Setting, block: Mapping[str, Any]) -> dict[str, Any]:
    """The losses of a training on one batch."""
    bench = Bench(setting, block)
    step, losses = bench.new_step(), []
    for number in range(setting.steps):
        taken = step(number, bench.batch)
        is_skipped = taken.overflow is not None and bool(taken.overflow.is_skipped)
        losses.append(math.nan if is_skipped else float(taken.loss))
    return {
        "losses": [None if math.isnan(loss) else round(loss, 5) for loss in losses],
        "skipped": sum(map(math.isnan, losses)),
    }


def bits(setting: Setting, block: Mapping[str, Any]) -> dict[str, Any]:
    """Whether weights, optimizer and loss scale are those of an undisturbed training in a second one, and in one
    that began halfway from its saved state."""
    bench, half = Bench(replace(setting, deterministic=True), block), BITS // 2
    undisturbed = bench.new_step()
    taken_steps(undisturbed, bench.batch, range(half))
    saved = copy.deepcopy({"model": undisturbed.model.state_dict(), "state": undisturbed.state()})
    taken_steps(undisturbed, bench.batch, range(half, BITS))
    again = bench.new_step()
    taken_steps(again, bench.batch, range(BITS))
    resumed = bench.new_step()
    resumed.model.load_state_dict(saved["model"])
    resumed.load(saved["state"])
    taken_steps(resumed, bench.batch, range(half, BITS))
    ends = [
        [*tensors(one.model.state_dict()), *tensors(one.state())] for one in (undisturbed, again, resumed)
    ]
    scales = [one.state().get("scaler") for one in (undisturbed, again, resumed)]
    return {
        "same_twice": all(map(torch.equal, ends[0], ends[1])) and scales[0] == scales[1],
        "same_resumed": all(map(torch.equal, ends[0], ends[2])) and scales[0] == scales[2],
        "tensors": len(ends[0]),
        "loss_scale": (scales[0] or {}).get("scale"),
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


def waits(bench: Bench) -> float | None:
    """How often a step makes the host wait for the GPU."""
    if not bench.device.is_cuda:
        return None
    step = bench.new_step()
    taken_steps(step, bench.batch, range(2))
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            taken_steps(step, bench.batch, range(2, 6))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(one.message) for one in said) / 4


def step_ms(bench: Bench) -> float:
    step, clock = bench.new_step(), Clock(bench.device)
    taken_steps(step, bench.batch, range(4))
    for number in range(4, 4 + TIMED):
        clock.over(lambda number=number: step(number, bench.batch))
    return round(statistics.median(clock.each()), 3)


def memory(setting: Setting, block: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """The peak of the tensors on the GPU in a step, beside what is said beforehand."""
    bench = Bench(setting, block, **keys)
    said = footprint_on(ALONE, bench.train.model_copy(update={"precision": bench.device.precision}), 1)
    if not bench.device.is_cuda:
        return {"said": said.peak}
    step = bench.new_step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    taken_steps(step, bench.batch, range(3))
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated()
    return {"said": said.peak, "taken": taken, "ratio": round(said.peak / taken, 3)}


def of_recipe(setting: Setting, block: Mapping[str, Any]) -> dict[str, Any]:
    """What is measured of every recipe, in bf16."""
    quick = replace(setting, precision="bf16", deterministic=False)
    found: dict[str, Any] = {"bits": bits(replace(setting, precision="bf16"), block)}
    found["waits"] = waits(Bench(quick, block))
    found["step_ms"] = {"deterministic": step_ms(Bench(replace(quick, deterministic=True), block))}
    for name, keys in {
        "plain": {},
        "compiled": {"compile": True},
        "checkpointing": {"checkpointing": True},
    }.items():
        found["step_ms"][name] = step_ms(Bench(quick, block, **keys))
    found["memory"] = {
        "plain": memory(quick, block),
        "checkpointing": memory(quick, block, checkpointing=True),
    }
    return found


def plain_loop(setting: Setting, block: Mapping[str, Any], *, compiled: bool) -> float:
    """Milliseconds of a step of open_clip's model in a loop of ten lines."""
    bench = Bench(replace(setting, precision="bf16", deterministic=False), block)
    size, name = bench.recipe.preprocessing.size, bench.recipe.options.registered
    model = open_clip.create_model(name, output_dict=True, force_image_size=size).to(bench.device.torch)
    model.train()
    loss_of = open_clip.ClipLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-6, fused=True)
    image, text = normalised(bench.batch["image"], bench.recipe.preprocessing), bench.batch["text"]
    run: Any = torch.compile(model) if compiled else model
    clock = Clock(bench.device)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(bench.device.torch.type, "bf16"):
            loss = loss_of(**run(image, text))
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))

    for _ in range(4):
        step()
    for _ in range(TIMED):
        clock.over(step)
    return round(statistics.median(clock.each()), 3)


def packed(setting: Setting, block: Mapping[str, Any]) -> dict[str, Any]:
    """Attention of variable length beside the mask: the loss of the same weights, and the time of a step."""
    bench = Bench(replace(setting, precision="bf16", deterministic=False), block)
    found: dict[str, Any] = {}
    for name in ("variable", "mask"):
        kept = attention.has_variable_lengths if name == "variable" else lambda *_: False
        with patch.object(attention, "has_variable_lengths", kept):
            found[name] = {"loss": bench.new_step().loss_of(bench.batch), "step_ms": step_ms(bench)}
    return found


def waiting(setting: Setting, digits: Digits) -> dict[str, float]:
    """The share of its time in which the device has nothing to do, in a training through the loader."""
    clip = {"recipe": "clip", "model": {"name": setting.model}, "batch_size": setting.batch_size}
    bench = Bench(setting, clip)
    feed = Feed(
        (Data(digits.version),),
        bench.recipe,
        setting.batch_size,
        workers=setting.workers,
        pin_memory=bench.device.is_cuda,
    )
    step, clock, uploads = bench.new_step(), Clock(bench.device), Uploads(bench.device)
    with feed.train() as batches:
        for number in range(setting.steps):
            given = uploads.put([next(batches)])
            if number < 5:  # workers and kernels start
                step(number, *given)
            else:
                clock.over(lambda number=number, given=given: step(number, *given))
    whole = clock.whole()
    rate = setting.batch_size * len(clock.each()) / whole * 1e3
    return {"idle": round(1 - sum(clock.each()) / whole, 4), "samples_per_s": round(rate, 1)}


def measure(setting: Setting, rounds: int, out: Path) -> dict[str, Any]:
    """Everything, as the JSON file holds it."""
    found: dict[str, Any] = {
        "card": card(setting),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        "cores": os.cpu_count(),
        "setting": asdict(setting),
    }

    def keep(name: str, part: str, value: Any) -> Any:
        found.setdefault(name, {})[part] = value
        shown = (
            {key: one for key, one in value.items() if key != "losses"} if isinstance(value, dict) else value
        )
        print(f"{name}, {part}: {json.dumps(shown)}", flush=True)
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return value

    with tempfile.TemporaryDirectory() as folder:
        given = blocks(setting, Path(folder))
        given = {name: {"recipe": name, **block} for name, block in given.items()}
        for name, block in given.items():
            keep("recipes", name, of_recipe(setting, block))
        for precision in ("fp32", "bf16", "fp16"):
            keep("curves", precision, curve(replace(setting, precision=precision), given["clip"]))
        keep("bits", "fp16", bits(replace(setting, precision="fp16"), given["clip"]))
        keep("packed", "vlm", packed(setting, given["vlm"]))
        for compiled in (False, True):
            name = "compiled" if compiled else "plain"
            keep("plain_loop_ms", name, plain_loop(setting, given["clip"], compiled=compiled))
        quick = replace(setting, precision="bf16", deterministic=False)
        digits = Digits.made_in(Path(folder))
        keep("digits", "device", waiting(quick, digits))
        rates = beside(digits, quick, rounds)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        ratios = {name: round(medians[name] / medians["open_clip"], 3) for name in medians}
        keep("digits", "beside", {"rates": rates, "ratios": ratios})
    keep("digits", "kept", kept(found))
    return found


def beside(digits: Digits, setting: Setting, rounds: int) -> dict[str, list[float]]:
    """The samples a second of whole trainings, ours compiled too, measured in turns."""
    ways = {
        "tarmac": partial(ours, digits, setting),
        "open_clip": partial(open_clips, digits, setting),
        "compiled": partial(ours, digits, replace(setting, compile=True)),
    }
    taken = [{name: way()["samples_per_s"] for name, way in ways.items()} for _ in range(rounds)]
    return {name: [row[name] for row in taken] for name in ways}


def kept(found: Mapping[str, Any]) -> dict[str, bool]:
    """Which promises the figures keep."""
    of_recipes = found["recipes"].values()
    proved = [*(one["bits"] for one in of_recipes), *found["bits"].values()]
    sizes = [size["ratio"] for one in of_recipes for size in one["memory"].values() if "ratio" in size]
    ratios = found["digits"]["beside"]["ratios"]
    return {
        "the same bits twice": all(one["same_twice"] for one in proved),
        "the same bits resumed": all(one["same_resumed"] for one in proved),
        "no waits in a step": not any(one["waits"] for one in of_recipes),
        "memory as said": all(abs(ratio - 1) <= MEMORY for ratio in sizes),
        "samples a second": ratios["tarmac"] >= PROMISED,
        "samples a second, compiled": ratios["compiled"] >= PROMISED_COMPILED,
    }


def card(setting: Setting) -> str:
    return "cpu" if setting.device == "cpu" else torch.cuda.get_device_name()


def _file_of(card_name: str) -> Path:
    return RESULTS / f"{re.sub(r'[^A-Za-z0-9]+', '-', card_name).strip('-').lower()}.json"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="What a GPU has to prove.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="ViT-B-32", help="any that open_clip knows, or tarmac/digits")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="the JSON file; one named by the card unless given")
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(NO_GPU + "\n")
        return 2
    setting = Setting(
        given.device, given.model, given.batch, given.steps, given.workers, given.threads, "fp32", True
    )
    out = given.out or _file_of(card(setting))
    out.parent.mkdir(parents=True, exist_ok=True)
    found = measure(setting, given.rounds, out)
    print(f"{found['digits']['kept']}; all figures are in {out}")
    return 0


def on_a_card(setup: Setup) -> Row:
    """What the script says of the digits; all of it is in the file that is named by the card."""
    out = setup.folder / "found.json" if setup.is_quick else None
    words = [
        sys.executable,
        "-m",
        "tests.benchmarks.bench_cuda",
        *setup.sized((), ("--steps", 30, "--rounds", 1)),
    ]
    Command([*words, *(("--out", out) if out else ())])()
    found = json.loads((out or _file_of(torch.cuda.get_device_name())).read_text())
    ratios, device = found["digits"]["beside"]["ratios"], found["digits"]["device"]
    return {"plain": ratios["tarmac"], "compiled": ratios["compiled"], "idle": device["idle"]}


def cases(setup: Setup) -> Iterator[Case]:
    if not torch.cuda.is_available():
        raise Absent("there is no GPU that torch can use")
    yield Case(torch.cuda.get_device_name(), {"tarmac": partial(on_a_card, setup)})


BENCHMARKS = (
    Benchmark(
        "cuda",
        "Training a CLIP on a GPU",
        "Whole trainings on the digits, beside `open_clip_train.main`, as it is and compiled; rounds are those of the "
        "script, whose file has everything else that a GPU has to prove.",
        cases,
        (
            Column("plain", "x open_clip's samples/s", ".2f"),
            Column("compiled", "x, compiled", ".2f"),
            Column("idle", "share of time that the device waits", ".3f"),
        ),
        promises=(
            Promise("samples/s over open_clip's", value("tarmac", "plain"), "at least", PROMISED),
            Promise(
                "samples/s over open_clip's, compiled",
                value("tarmac", "compiled"),
                "at least",
                PROMISED_COMPILED,
            ),
        ),
        packages=("torch", "open_clip_torch"),
        rounds=1,
        is_warm=False,
    ),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
