"""Answers and losses that are made by hand, judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tasks.core.errors import DataError, UsageError
from tasks.core.schema import TaskSpec
from tasks.evaluation import evaluators
from tasks.evaluation.checkpoint import LoadedCheckpoint
from tasks.evaluation.contract import Answered, BatchLoss, ChatRequest
from tasks.evaluation.kinds.statistics import wilson_interval
from tasks.evaluation.kinds.validation_loss import ValidationLoss
from tasks.evaluation.kinds.vlm import Vlm

ANSWERS = [
    Answered("a", "Which digit?", "It is seven.", "it is seven. "),
    Answered("a", "Is it odd?", "Yes.", "No."),
    Answered("b", "Which digit?", "It is two.", "It is seven."),
    Answered("c", "Is it odd?", "Yes.", "Yes."),
]


@dataclass(frozen=True)
class Said:
    answered: Sequence[Answered] = tuple(ANSWERS)
    loss: Sequence[BatchLoss] = (BatchLoss(6.0, 3.0, 2), BatchLoss(1.0, 1.0, 1))
    asked: Any = None

    def held_out(self) -> str:
        return "val"

    def losses(self, split: str) -> Iterator[BatchLoss]:
        yield from self.loss

    def answers(self, split: str, samples: int, most_tokens: int) -> Iterator[Answered]:
        if self.asked is not None:
            self.asked.append((split, samples, most_tokens))
        yield from self.answered


def test_exact_match_forgives_case_and_outer_spaces_alone() -> None:
    outcome = Vlm().evaluate(Said())
    assert outcome.metrics == {"exact_match": 0.5, "loss": 7 / 4}, "tokens weigh, not batches"
    assert outcome.intervals == {"exact_match": wilson_interval(2, 4)}
    assert outcome.chance == {"exact_match": 3 / 4}, "who knows the questions by heart"
    assert [one.predicted for one in outcome.predictions] == ["it is seven.", "No.", "It is seven.", "Yes."]


def test_its_arguments_say_what_is_asked() -> None:
    asked: list[Any] = []
    evaluators.load_evaluator(TaskSpec(kind="vlm", split="train", samples=7, most_tokens=3)).evaluate(
        Said(asked=asked)
    )
    assert asked == [("train", 7, 3)]
    with pytest.raises(UsageError, match="vlm: most_token: unknown argument; did you mean most_tokens"):
        evaluators.load_evaluator(TaskSpec(kind="vlm", most_token=3))


class Precise:
    """A model that says in which precision it computes."""

    def ask(self, messages: Any, pictures: Any) -> None:
        return None

    def answer(self, questions: Any, most_tokens: int) -> list[str]:
        return [str(torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype) for _ in questions]


@pytest.mark.parametrize(("precision", "said"), [("fp32", "torch.float32"), ("bf16", "torch.bfloat16")])
def test_a_checkpoint_is_judged_in_the_precision_of_its_training(precision: str, said: str) -> None:
    subject: Any = LoadedCheckpoint(Precise(), torch.device("cpu"), precision, *[None] * 2)  # type: ignore[arg-type]
    assert subject.replies([ChatRequest([("user", "?")], [])], 4) == [said]


def test_validation_loss_is_the_mean_over_all_samples() -> None:
    outcome = ValidationLoss().evaluate(Said())
    assert outcome.metrics == {"loss": 7 / 4} and outcome.samples == 3


@pytest.mark.parametrize("evaluator", [Vlm(), ValidationLoss()])
def test_lost_weights_and_no_question_are_told(evaluator: Vlm | ValidationLoss) -> None:
    with pytest.raises(DataError, match="the loss is nan: the model's weights are lost"):
        evaluator.evaluate(Said(loss=[BatchLoss(math.nan, 3.0, 2)]))
    with pytest.raises(DataError, match="hold no question"):
        Vlm().evaluate(Said(answered=()))
