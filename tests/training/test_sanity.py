"""Each check by itself, on tensors; tests/sanity plants the mistakes in real trainings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tasks.dataset import examples
from tasks.dataset.building.builder import build
from tasks.loader.batches import open_split
from tasks.runs.folder import RunFolder
from tasks.training.sanity.inputs import JUDGED_TEXTS, Pictures, SampleOrder, Texts, same_on_several_ranks
from tasks.training.sanity.leak import find_leak
from tasks.training.sanity.weights import Gradients, WeightSample
from tests.conftest import digits_config

PADDED = torch.zeros(16, dtype=torch.int64)


def pictures(samples: int = 16) -> torch.Tensor:
    return torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def problem_of(batch: torch.Tensor) -> str | None:
    tower = nn.Conv2d(3, 2, 1)
    examined = Pictures([tower])
    found = None
    for _ in range(2):
        with examined.seeing() as seen:
            tower(batch)
        found = examined.judge(seen[0])
    assert not tower._forward_pre_hooks
    return None if found is None else str(found.evidence["what"])


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        (pictures(), None),
        (pictures().clamp(-0.1, 0.1), None),
        (torch.zeros(16, 3, 8, 8), "empty"),
        (torch.linspace(0, 1, 16).view(16, 1, 1, 1).expand(16, 3, 8, 8), "empty"),
        (pictures(1).expand(16, 3, 8, 8), "all pictures are equal"),
        (pictures().sub(0.48).div(0.27).clamp(-8.4, 6), "values -8"),
        (torch.randint(0, 256, (16, 3, 8, 8)).float(), "0 to 255"),
        (torch.zeros(2, 3, 8, 8), None),
    ],
    ids=[
        "sound",
        "low contrast",
        "black",
        "one grey each",
        "equal",
        "normalised twice",
        "not normalised",
        "few",
    ],
)
def test_pictures_as_the_tower_gets_them(batch: torch.Tensor, problem: str | None) -> None:
    found = problem_of(batch)
    assert (found is None) == (problem is None) and (problem or "") in (found or "")


def texts_of(rows: torch.Tensor) -> dict[str, tuple[str, str]]:
    judged = Texts(PADDED)
    found = [one for part in rows.split(32) for one in judged.judge(part)]
    return {one.code: (one.severity, str(one.evidence["what"])) for one in found}


def test_texts() -> None:
    rows = torch.arange(JUDGED_TEXTS).view(-1, 1) + torch.tensor([[1, 2, 3] + [0] * 13])
    rows[:, 3:] = 0
    assert texts_of(rows) == {}
    assert texts_of(rows[:64].repeat(1, 1)) == {}, "too few to judge"
    placeholder = rows.clone()
    placeholder[: JUDGED_TEXTS // 2] = 7
    assert texts_of(placeholder)["captions.repeated"][0] == "warning"
    assert "50% of 128 texts fill all 16 tokens" in texts_of(placeholder)["text.truncated"][1]
    classes = rows[:8].repeat(JUDGED_TEXTS // 8, 1)
    severity, what = texts_of(classes)["captions.repeated"]
    assert severity == "info" and "cannot fall below 1.5" in what


def order_of(*epochs: list[str], is_augmented: bool = True) -> str | None:
    order = SampleOrder(lambda: is_augmented)
    draw = np.random.default_rng(0)
    for keys in epochs:
        for start in range(0, len(keys), 10):
            part = keys[start : start + 10]
            views = torch.from_numpy(draw.integers(0, 255, (len(part), 4, 4)))
            if (found := order.judge({"key": part, "image": views})) is not None:
                return str(found.evidence["what"])
    return None


def test_order() -> None:
    keys = [f"k{number}" for number in range(100)]
    other = [*np.random.default_rng(1).permutation(keys)]
    assert order_of(keys, other, other[::-1]) is None
    assert "same 64 samples in the same order" in (order_of(keys, keys) or "")
    assert order_of(keys[:8], keys[:8]) is None, "so few may come in the same order by chance"


@pytest.mark.parametrize("is_augmented", [True, False])
def test_views_that_repeat(is_augmented: bool) -> None:
    order = SampleOrder(lambda: is_augmented)
    views = torch.arange(40).view(40, 1, 1).expand(40, 4, 4)
    found = None
    for epoch in (range(40), reversed(range(40))):
        chosen = list(epoch)
        found = order.judge({"key": [str(one) for one in chosen], "image": views[chosen]})
    assert (found is not None) == is_augmented


def test_ranks_that_read_alike() -> None:
    assert same_on_several_ranks([1, 2, 3]) is None
    assert same_on_several_ranks([1, 2, 1]) is not None


def test_weights_and_gradients() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"vision": nn.Linear(64, 8), "text": nn.Linear(64, 8)})
    parts = {part: list(module.named_parameters()) for part, module in model.items()}
    before = WeightSample.of(parts)
    gradients = Gradients(parts, before.judged)
    found = []
    for _ in range(3):
        loss = model["vision"](torch.ones(2, 64)).sum() * 1e-9 + model["text"](torch.ones(2, 64)).sum()
        loss.backward()
        found = list(gradients.judge())
        model.zero_grad()
    assert [(one.code, one.where) for one in found] == [("gradients.vanishing", {"part": "vision"})]
    with torch.no_grad():
        model["text"].weight += 1e-6
    assert before.moved(WeightSample.of(parts)) == {"vision": 0.0, "text": 1.0}


@pytest.mark.parametrize("is_private", [False, True])
def test_copies_in_the_held_out_split(tmp_path: Path, is_private: bool) -> None:
    raw = tmp_path / "raw"
    examples.write_example("digits", raw)
    lines = (raw / "captions.csv").read_text().splitlines()[:301]
    for line in lines[1:20]:
        shutil.copy(raw / line.split(",")[0], raw / f"copy_{line.split(',')[0]}")
    copies = [f"copy_{line}" for line in lines[1:20]]
    (raw / "captions.csv").write_text("\n".join([*lines, *copies]) + "\n")
    version = build(digits_config(raw, tmp_path)).version
    held_out, trained = (open_split(version, split, ()) for split in ("val", "train"))
    found = find_leak(held_out, trained, is_private=is_private)
    assert found is not None and found.severity == "warning"
    assert ("copy_" in str(found.evidence)) != is_private


def test_a_healthy_training_is_not_doubted(undisturbed: RunFolder) -> None:
    found = [json.loads(line) for line in undisturbed.sanity.read_text().splitlines()]
    assert {(one["code"], one["severity"]) for one in found} <= {("captions.repeated", "info")}
