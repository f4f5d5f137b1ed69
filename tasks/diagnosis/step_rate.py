"""Measures a few steps of a training: the samples per second that it takes, and the memory of a step.

One batch is used again and again, so the loader has no part in it. The steps are plain ones: forward,
backward and AdamW, on the device that the training would have. Weight averages and the exchange between ranks
are left out, which errs on the safe side: the training takes no more samples than this.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from tasks.core.schema import Train
from tasks.diagnosis import memory
from tasks.diagnosis.step_memory import Room
from tasks.models import adapters
from tasks.models.layers import lock
from tasks.models.recipes import Recipe

MEASURED_S, LEAST_STEPS, MOST_STEPS = 2.0, 2, 20
LONG_STEP_S = 20.0
"""The first step also sets things up. It is the only step that is timed if it takes longer than this, else it
is not counted."""
NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "could not create a primitive")
"""The messages by which torch, C++ and oneDNN report an allocation that fails on a CPU."""
LOWER = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trial:
    """A model of the recipe that takes the training's steps on given batches, on the device that the training
    would have. The learning rate is 0, and the random state of the process stays unchanged."""

    def __init__(self, recipe: Recipe, train: Train) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_num_threads(train.threads)
        state = torch.get_rng_state()
        model = recipe.build_model(pretrained=False).to(self._device)
        copied = sum(map(_bytes_of, model.parameters())) if train.ema or train.lora else 0
        if train.lora is not None:
            adapters.add(recipe, model, train)
        lock(recipe, model, train)
        torch.set_rng_state(state)
        self._task = recipe.task(model).train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=0.0, fused=True)
        self._lower = LOWER.get(train.precision)
        self.fixed_bytes = self._held() + 3 * sum(map(_bytes_of, trained)) + copied
        """The bytes of this process, or on its GPU, with gradients, AdamW's averages and the weights that are
        judged."""

    def room(self, limits: memory.MachineLimits, ranks: int) -> Room:
        """Return the memory to compare the peak with, by the machine's `limits` before the model was made."""
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            return Room(free + torch.cuda.memory_reserved(self._device), "the GPU's free memory")
        return Room(limits.memory, limits.by, ranks)

    def peak_bytes(self, batch: Mapping[str, Any], room: Room) -> float:
        """Return the peak memory of two steps within the room; infinite where they need more."""
        is_cuda = self._device.type == "cuda"
        if is_cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            memory.forget_peak()
        rest = max(memory.SPARE * room.bytes / room.ranks - memory.own_bytes("VmRSS"), 0.0)
        try:
            with nullcontext() if is_cuda else memory.bounded(rest):
                here = self._put(batch)
                for _ in range(2):  # the optimizer's averages exist from the second on
                    self._step(here)
        except (torch.OutOfMemoryError, MemoryError):
            return math.inf
        except RuntimeError as error:  # torch raises it on a CPU
            if not any(sign in str(error) for sign in NO_MEMORY):
                raise
            return math.inf
        return float(torch.cuda.max_memory_allocated(self._device)) if is_cuda else memory.own_bytes("VmHWM")

    def samples_per_s(self, batch: Mapping[str, Any]) -> float:
        """Return the samples per second of one rank, by the fastest of some steps: other work of the machine
        must not make the training seem slow, or it would get too few workers."""
        here = self._put(batch)
        seconds = [self._timed(here)]
        if seconds[0] < LONG_STEP_S:
            began, seconds = time.perf_counter(), [self._timed(here) for _ in range(LEAST_STEPS)]
            while time.perf_counter() - began < MEASURED_S and len(seconds) < MOST_STEPS:
                seconds.append(self._timed(here))
        return len(batch["key"]) / min(seconds)

    def _put(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        tensors = {name: one.to(self._device) for name, one in batch.items() if isinstance(one, Tensor)}
        return {**batch, **tensors}

    def _step(self, batch: Mapping[str, Any]) -> None:
        self._optimizer.zero_grad()
        with nullcontext() if self._lower is None else torch.autocast(self._device.type, self._lower):
            loss = self._task(batch)
        (loss.sum / loss.weight).backward()
        self._optimizer.step()
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _timed(self, batch: Mapping[str, Any]) -> float:
        began = time.perf_counter()
        self._step(batch)
        return time.perf_counter() - began

    def _held(self) -> float:
        if self._device.type == "cuda":
            return float(torch.cuda.memory_allocated(self._device))
        return memory.own_bytes("VmRSS")


def _bytes_of(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()
