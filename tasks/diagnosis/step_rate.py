"""Takes steps of a training by itself: how fast they are without and with a loader, and the memory of one.

The ceiling is the rate of steps on cached batches, which cost nothing: no loader can make the training
faster. What the chosen loader lets the same steps reach, beside which it uses the cores, shows how much of
it is left. Source of the method: SPDL's CacheDataLoader and the loader evaluator of NVIDIA's DALI, which
replay cached batches through a training as well.

The steps are the training's own, on the device that it would have, but of one rank alone: neither the
exchange between ranks nor other ranks on the same cores are in the figures. `train.compile` is left out,
because compiling takes longer than all measurements; a compiled training may take more samples than this.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from tasks.core.schema import Train
from tasks.diagnosis import memory
from tasks.diagnosis.step_memory import Room
from tasks.loader.collate import Batch
from tasks.models.recipes import Recipe
from tasks.training.devices import Uploads, choose, forms_demanded, random_state, set_random_state
from tasks.training.step import Step

MEASURED_S, ROUND_S, LEAST_ROUNDS = 2.0, 0.5, 2
"""The least time that the ceiling takes, the time of about one of its rounds, and their least number."""
LONG_STEP_S = 5.0
"""A step that would take longer is cut, as its rate hardly depends on its samples any more."""
FED_S, FILL_S, FED_AT_MOST_S = 2.5, 1.5, 20.0
"""The time that steps are fed by a loader, the time before that in which its queues get as full as they stay,
and the time after which a round waits for no more workers."""
CACHED = 8
"""The most batches that are cached."""
MANY = 10**9
NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "could not create a primitive")
"""The messages by which torch, C++ and oneDNN report an allocation that fails on a CPU."""


class Trial:
    """A model of the recipe, with random weights that hardly change, and the training's step."""

    def __init__(self, recipe: Recipe, train: Train) -> None:
        self._device = choose(train)
        state = random_state()
        model = recipe.build_model(pretrained=False).to(self._device.torch)
        steps = {"steps": MANY, "warmup": MANY, "compile": False}  # so the first step's learning rate is low
        self._step = Step(recipe, model, train.model_copy(update=steps), self._device)
        set_random_state(state)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.fixed_bytes = self._held() + 3 * sum(map(_bytes_of, trained))
        """The bytes of this process, or on its GPU, with gradients and AdamW's averages."""

    @property
    def pins(self) -> bool:
        """Whether the training has its batches in memory that a GPU reads itself."""
        return self._device.is_cuda

    def room(self, limits: memory.MachineLimits, ranks: int) -> Room:
        """Return the memory to compare the peak with, by the machine's `limits` before the model was made."""
        if self._device.is_cuda:
            free, _ = torch.cuda.mem_get_info(self._device.torch)
            return Room(free + torch.cuda.memory_reserved(self._device.torch), "the GPU's free memory")
        return Room(limits.memory, limits.by, ranks)

    def peak_bytes(self, batch: Batch, room: Room) -> float:
        """Return the peak memory of two steps within the room; infinite where they need more."""
        is_cuda = self._device.is_cuda
        if is_cuda:
            torch.cuda.reset_peak_memory_stats(self._device.torch)
        else:
            memory.forget_peak()
        rest = max(memory.SPARE * room.bytes / room.ranks - memory.own_bytes("VmRSS"), 0.0)
        try:
            with nullcontext() if is_cuda else memory.bounded(rest):
                here = self._device.put(batch)
                for _ in range(2):  # the optimizer's averages exist from the second on
                    self._take([here])
                self._finish()
        except (torch.OutOfMemoryError, MemoryError):
            return math.inf
        except RuntimeError as error:  # torch raises it on a CPU
            if not any(sign in str(error) for sign in NO_MEMORY):
                raise
            return math.inf
        if is_cuda:
            return float(torch.cuda.max_memory_allocated(self._device.torch))
        return memory.own_bytes("VmHWM")

    def step_size(self, batch: Batch, share: int, part: int) -> int:
        """Return how many samples the measured steps have: a rank's whole `share`, or as many parts of `part`
        samples, or samples of a single part, as take LONG_STEP_S by the pace of a small batch."""
        self._timed([[batch]])  # sets things up
        fitting = int(LONG_STEP_S / self._timed([[batch]]) * len(batch["key"]))
        if fitting >= share:
            return share
        return max(fitting // part * part, min(fitting, part), 1)

    def ceiling(self, steps: Sequence[Sequence[Batch]]) -> float:
        """Return the samples per second of steps on cached batches, each in parts. The fastest round of some
        steps counts, or other work of the machine would make the training seem slow, and it would get too
        few workers."""
        if self.pins:
            steps = [[_pinned(part) for part in step] for step in steps]
        count = max(round(ROUND_S / self._timed(steps[:1])), 1)
        turn = list(islice(cycle(steps), count))
        samples = sum(len(part["key"]) for step in turn for part in step)
        began, seconds = time.perf_counter(), list[float]()
        while len(seconds) < LEAST_ROUNDS or time.perf_counter() - began < MEASURED_S:
            seconds.append(self._timed(turn))
        return samples / min(seconds)

    def fed(self, batches: Iterator[Batch], parts: int, workers: int, ahead: int) -> float:
        """Return the samples per second of steps on a loader's batches, which come in `parts`; the fastest
        round counts, as for the ceiling. The workers finish at about one time, so a round ends with a part
        of the last one; `ahead` parts are as many as their queues hold."""
        uploads = Uploads(self._device)

        def take(is_over: Callable[[int, float], bool]) -> float:
            samples, taken, began, elapsed = 0, 0, time.perf_counter(), 0.0
            while not is_over(taken, elapsed):
                batch = [next(batches) for _ in range(parts)]
                self._take(uploads.put(batch))
                samples += sum(len(part["key"]) for part in batch)
                taken, elapsed = taken + parts, time.perf_counter() - began
            self._finish()
            return samples / (time.perf_counter() - began)

        def is_whole(taken: int, elapsed: float) -> bool:
            return (elapsed >= ROUND_S and taken % max(workers, 1) == 0) or elapsed >= FED_AT_MOST_S

        take(lambda taken, elapsed: taken >= max(ahead, 1) or elapsed >= FILL_S)
        began, rates = time.perf_counter(), list[float]()
        while not rates or time.perf_counter() - began < FED_S:
            rates.append(take(is_whole))
        return max(rates)

    def _take(self, parts: Sequence[Mapping[str, Any]]) -> None:
        with forms_demanded():
            self._step(0, *parts)

    def _timed(self, steps: Sequence[Sequence[Batch]]) -> float:
        """Return the seconds of these steps one after the other; their batches go to the device as in the
        training."""
        uploads, began = Uploads(self._device), time.perf_counter()
        for step in steps:
            self._take(uploads.put(step))
        self._finish()
        return time.perf_counter() - began

    def _finish(self) -> None:
        self._step.laps.take()
        if self._device.is_cuda:
            torch.cuda.synchronize(self._device.torch)

    def _held(self) -> float:
        if self._device.is_cuda:
            return float(torch.cuda.memory_allocated(self._device.torch))
        return memory.own_bytes("VmRSS")


def cached_steps(batch: Batch, size: int, part: int) -> list[list[Batch]]:
    """Divide a batch into steps of `size` samples in parts of `part`, at most CACHED of them. Where it has
    too few samples for one, they are used again: a step takes as long on them as on others."""
    samples = len(batch["key"])
    steps = min(max(samples // size, 1), CACHED)
    return [
        [
            _rows(batch, [row % samples for row in range(start, min(start + part, end))])
            for start in range(end - size, end, part)
        ]
        for end in range(size, (steps + 1) * size, size)
    ]


def _rows(batch: Batch, rows: Sequence[int]) -> Batch:
    return {
        name: value[list(rows)] if isinstance(value, Tensor) else [value[row] for row in rows]
        for name, value in batch.items()
    }


def _pinned(batch: Batch) -> Batch:
    return {name: value.pin_memory() if isinstance(value, Tensor) else value for name, value in batch.items()}


def _bytes_of(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()
