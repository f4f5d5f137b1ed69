"""Tokens a second of the recipe vlm beside a plain PyTorch loop of the same parts, on the same packs.

The plain loop does what nanoVLM's does: logits of every token, the mean over the answers' tokens, AdamW, and a
mask that hides what fills up rows, but not the conversations of a pack from each other. The parts are
`tarmac/chat`, with the vocabulary of SmolLM2, whose logits take most of the time, and with its own of bytes,
where they take little. By one thread on the CPU and in its own seconds, which other programs do not change;
each ratio is the median of those of 15 pairs of runs, one after the other.

    .venv/bin/python -m tests.benchmarks.bench_vlm
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tasks.core.schema import Train
from tasks.models import recipes
from tasks.models.vlm.vlm import PADDING, VisionLanguageModel, real_tiles, rows_of
from tasks.training.devices import Device
from tasks.training.step import Step
from tests.models.examples import chat

SMOLLM2 = 49_218
ROUNDS = 15
ROWS, CONVERSATIONS = 2, 3
MODEL = {"vision": "tarmac/chat", "language": "tarmac/chat", "pixel_shuffle": 2, "max_side": 32}


def seconds(step: Callable[[], None], steps: int) -> float:
    began = time.thread_time()
    for _ in range(steps):
        step()
    return (time.thread_time() - began) / steps


def model_of(recipe: Any, vocabulary: int | None) -> VisionLanguageModel:
    torch.manual_seed(0)
    model: VisionLanguageModel = recipe.build_model()
    if vocabulary is not None:
        model.language.resize_token_embeddings(vocabulary, mean_resizing=False)
    return model


def plain_loop(model: VisionLanguageModel, batch: dict[str, Any]) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    head: nn.Module = model.language.get_output_embeddings()
    length = batch["tokens"].shape[1]
    positions = torch.arange(length).expand_as(batch["tokens"])

    def step() -> None:
        optimizer.zero_grad()
        tiles = real_tiles(batch["image"], batch["tiles"], int(batch["tiles"].sum()))
        is_before = torch.ones(length, length, dtype=torch.bool).tril()
        mask = ((batch["segments"] != PADDING)[:, None] & is_before)[:, None]
        features = model.language.base_model(
            inputs_embeds=model.embed(batch["tokens"], tiles), attention_mask=mask, position_ids=positions
        )
        logits = head(features.last_hidden_state)
        loss = cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-100)
        loss.backward()
        optimizer.step()

    return step


def ratio(vocabulary: int | None, steps: int) -> float:
    """Tokens a second of the recipe by those of the plain loop."""
    block = {"batch_size": ROWS, "steps": 1000, "lr": 1e-4, "checkpoint_every": 1000}
    train = Train.model_validate({"recipe": "vlm", "model": MODEL, **block})
    recipe: Any = recipes.load_recipe(train)
    transform = recipe.transform(True)
    samples = [
        {**transform(chat(1 + n % 2), None), "key": str(n), "pack": n // CONVERSATIONS}
        for n in range(ROWS * CONVERSATIONS)
    ]
    batch = rows_of(samples)
    take, number = (
        Step(recipe, model_of(recipe, vocabulary), train, Device(torch.device("cpu"), "fp32")),
        iter(range(10_000)),
    )
    ways = {
        "tarmac": lambda: take(next(number), batch),
        "plain": plain_loop(model_of(recipe, vocabulary).train(), batch),
    }
    for way in ways.values():
        way()
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            taken[name].append(seconds(way, steps))
    tokens = batch["tokens"].numel()
    for name, times in taken.items():
        print(f"{name:8} {tokens / statistics.median(times):10,.0f} tokens/s")
    found = statistics.median(plain / own for own, plain in zip(taken["tarmac"], taken["plain"], strict=True))
    name = "its own" if vocabulary is None else f"{vocabulary:,}"
    print(f"ratio    {found:.2f} with a vocabulary of {name} (at least 1.00)", flush=True)
    return found


def main() -> None:
    torch.set_num_threads(1)
    found = [ratio(SMOLLM2, 1), ratio(None, 5)]
    print(f"load average {os.getloadavg()[0]:.1f}")
    sys.exit(0 if min(found) >= 1 else 1)


if __name__ == "__main__":
    main()
