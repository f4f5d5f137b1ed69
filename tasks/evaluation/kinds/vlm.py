"""Measure how often a vision-language model answers held-out questions word for word, and the loss of the
answers.

Each question of a conversation is asked after the right answers to the earlier ones, so a mistake counts
once. The model decodes greedily, which needs no seed and gives one answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from tasks.core.errors import DataError
from tasks.evaluation.contract import Answered, BatchLoss, EvaluationOutcome, Evaluator, Members, Subject
from tasks.evaluation.kinds.statistics import wilson_interval
from tasks.evaluation.kinds.validation_loss import judged_batches, mean_loss
from tasks.evaluation.results import KEPT_PREDICTIONS, Prediction, plain
from tasks.evaluation.samples import Formula, JudgedSamples
from tasks.models.recipes import Capability


class Vlm(Evaluator):
    """The arguments of a task of kind `vlm`."""

    needs: ClassVar[frozenset[Capability]] = frozenset({"loss", "generate"})

    samples: Annotated[int, Field(ge=1)] = 1000
    """How many samples of the split are used, from its start, because writing answers is slow."""
    most_tokens: Annotated[int, Field(ge=1)] = 64
    """The longest answer; one that is cut off there is no exact match."""

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        return ("exact_match", "loss")

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Return `exact_match`, the share of answers that are right but for case and outer spaces, and `loss`
        per token of the right answers, on the whole split.

        The chance of `exact_match` is the score of the commonest answer to each question, which needs no
        pictures. DataError without a question or for a loss that is not finite.
        """
        split = self.split or subject.held_out()
        loss, losses = mean_loss(subject, split)
        answers = list(subject.answers(split, self.samples, self.most_tokens))
        if not answers:
            raise DataError(f"{split}: its first {self.samples:,} samples hold no question")
        right = sum(map(is_match, answers))
        return EvaluationOutcome(
            metrics={"exact_match": right / len(answers), "loss": loss},
            split=split,
            samples=len(answers),
            intervals={"exact_match": wilson_interval(right, len(answers))},
            chance={"exact_match": right_by_habit(answers) / len(answers)},
            predictions=shown(answers),
            by_sample=judged_questions(answers, losses),
        )


def is_match(one: Answered) -> bool:
    return plain(one.answer) == plain(one.expected)


def judged_questions(answers: Sequence[Answered], losses: Sequence[BatchLoss]) -> JudgedSamples:
    """Return one row per question, and then those of the batches' losses."""
    batches, numbers = judged_batches(losses), Counter[str]()
    items = []
    for one in answers:
        items.append(f"question {numbers[one.key]}")
        numbers[one.key] += 1
    of_questions, of_batches = np.full(len(answers), np.nan), np.full(len(losses), np.nan)
    right = np.array([is_match(one) for one in answers], np.float64)
    return replace(
        batches,
        keys=[*(one.key for one in answers), *batches.keys],
        items=[*items, *batches.items],
        groups=[*(one.key for one in answers), *batches.groups],
        columns={
            "exact_match": np.concatenate([right, of_batches]),
            **{name: np.concatenate([of_questions, column]) for name, column in batches.columns.items()},
        },
        formulas={"exact_match": Formula("mean", ["exact_match"]), **batches.formulas},
    )


def right_by_habit(answers: list[Answered]) -> int:
    """Count the questions that their commonest answer gets right."""
    by_question: dict[str, Counter[str]] = {}
    for one in answers:
        by_question.setdefault(one.question, Counter())[plain(one.expected)] += 1
    return sum(counted.most_common(1)[0][1] for counted in by_question.values())


def shown(answers: list[Answered]) -> list[Prediction]:
    """Return the conversations of the first samples, for a reader."""
    keys = list(dict.fromkeys(one.key for one in answers))[:KEPT_PREDICTIONS]
    return [
        Prediction(
            key=one.key, question=one.question, label=one.expected.strip(), predicted=one.answer.strip()
        )
        for one in answers
        if one.key in keys
    ]
