"""Small tasks in float64, and steps of them, without a config's run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tasks.core.schema import Train
from tasks.loader.collate import stack
from tasks.models.task import ALL, Contrastive, Features, Loss, Task
from tasks.training.devices import Device
from tasks.training.ranks import ALONE, Ranks
from tasks.training.step import Step

SAMPLES = 12


class Towers(torch.nn.Module):
    """Two towers with dropout, and a temperature, in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.visual = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Dropout(0.5), torch.nn.Linear(5, 4))
        self.text = torch.nn.Linear(3, 4)
        self.logit_scale = torch.nn.Parameter(torch.tensor(1.0))
        self.double()


class Meeting(Contrastive):
    def encode(self, batch: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        return {"a": self.model.visual(batch["image"]), "b": self.model.text(batch["text"])}

    def contrast(self, features: Features, own: slice = ALL) -> Loss:
        logits = features["a"][own] @ features["b"].T * self.model.logit_scale.exp()
        weight, places = logits.new_tensor(len(logits)), torch.arange(len(features["a"]))[own]
        return Loss(torch.nn.functional.cross_entropy(logits, places) * weight, weight, {})


class Sum(Task):
    """Its weight is another for each sample, as tokens are."""

    def forward(self, batch: Mapping[str, Any]) -> Loss:
        errors = (
            self.model.visual(batch["image"]).square().sum(1) + self.model.text(batch["text"]).sum(1).cos()
        )
        scaled = errors * batch["tokens"] * self.model.logit_scale
        return Loss(scaled.sum(), batch["tokens"].sum(), {"tokens": batch["tokens"].sum()})


class Recipe:
    collate = staticmethod(stack)

    def __init__(self, kind: type[Task]) -> None:
        self.kind = kind

    def build_model(self, *, pretrained: bool = True) -> torch.nn.Module:
        return Towers()

    def task(self, model: torch.nn.Module) -> Task:
        return self.kind(model)

    def transform(self, is_train: bool) -> Any:
        raise AssertionError("these tests make their batches themselves")

    def part_of(self, name: str) -> str:
        return name.partition(".")[0]

    def is_decayed(self, name: str, parameter: torch.Tensor) -> bool:
        return parameter.ndim > 1


def step_of(
    kind: type[Task], model: torch.nn.Module | None = None, ranks: Ranks = ALONE, **keys: Any
) -> Step:
    block = {
        "recipe": "clip",
        "model": {},
        "batch_size": SAMPLES,
        "steps": 10,
        "lr": 0.01,
        "checkpoint_every": 5,
    }
    train = Train.model_validate({**block, **keys})
    return Step(Recipe(kind), model or Towers(), train, Device(torch.device("cpu"), train.precision), ranks)


def batch(samples: int = SAMPLES) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    draw = {"generator": generator, "dtype": torch.float64}
    return {
        "image": torch.randn(samples, 6, **draw),
        "text": torch.randn(samples, 3, **draw),
        "tokens": torch.randint(1, 9, (samples,), generator=generator).double(),
        "key": [str(n) for n in range(samples)],
    }


def without_dropout() -> Towers:
    model = Towers()
    model.visual[1].p = 0.0
    return model


KINDS: Mapping[str, type[Task]] = {"meeting": Meeting, "sum": Sum}
