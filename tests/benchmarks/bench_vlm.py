"""Tokens a second of the recipe vlm beside a plain PyTorch loop of the same parts, on the same packs.

The plain loop does what nanoVLM's does: logits of every token, the mean over the answers' tokens, AdamW, and a
mask that hides what fills up rows, but not the conversations of a pack from each other. The parts are
`tarmac/chat`, with the vocabulary of SmolLM2, whose logits take most of the time, and with its own of bytes,
where they take little. By one thread on the CPU and in its own seconds, which other programs do not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tasks.core.schema import Train
from tasks.models import recipes
from tasks.models.vlm.vlm import PADDING, VisionLanguageModel, real_tiles, rows_of
from tasks.training.devices import Device
from tasks.training.step import Step
from tests.benchmarks.harness import Benchmark, Case, Column, Promise, Row, Setup, call, times
from tests.models.examples import chat

SMOLLM2 = 49_218
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


def trained(way: str, vocabulary: int | None, steps: int) -> Row:
    """`tokens_per_s` of the recipe, or of the plain loop."""
    torch.set_num_threads(1)
    block = {"batch_size": ROWS, "steps": 1000, "lr": 1e-4, "checkpoint_every": 1000}
    train = Train.model_validate({"recipe": "vlm", "model": MODEL, **block})
    recipe: Any = recipes.load_recipe(train)
    transform = recipe.transform(True)
    samples = [
        {**transform(chat(1 + n % 2), None), "key": str(n), "pack": n // CONVERSATIONS}
        for n in range(ROWS * CONVERSATIONS)
    ]
    batch = rows_of(samples)
    model = model_of(recipe, vocabulary)
    take = plain_loop(model.train(), batch)
    if way == "tarmac":
        step = Step(recipe, model, train, Device(torch.device("cpu"), "fp32"))
        numbers = iter(range(10_000))

        def take() -> None:
            step(next(numbers), batch)

    take()
    return {"tokens_per_s": batch["tokens"].numel() / seconds(take, steps)}


def cases(setup: Setup) -> Iterator[Case]:
    for name, vocabulary, steps in (("vocabulary of SmolLM2", SMOLLM2, 5), ("vocabulary of bytes", None, 25)):
        given = (vocabulary, setup.sized(steps, 1))
        yield Case(name, {way: call(trained, way, *given) for way in ("tarmac", "plain loop")})


BENCHMARKS = (
    Benchmark(
        "vlm",
        "A step of a vision-language model",
        "Steps of the recipe `vlm` on one thread, in seconds of the CPU, beside a plain PyTorch loop of the same parts on "
        "the same packs, which computes the logits of every token as nanoVLM's does. Ours also hides the conversations "
        "of a pack from each other.",
        cases,
        (Column("tokens_per_s", "tokens/s"),),
        promises=(
            Promise(
                "tokens/s over the plain loop's",
                times("tokens_per_s", "tarmac", "plain loop"),
                "at least",
                1.0,
            ),
        ),
        packages=("torch", "transformers"),
        ratio="tokens_per_s",
    ),
)
