"""Does a vision-language model answer held-out questions word for word, and how likely are the answers to it?

Each question of a conversation is asked with the right answers to those before it, so a mistake counts once.
The model says the likeliest token each time (greedily), which needs no seed and gives one answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from tasks.core.errors import DataError
from tasks.evaluation.contract import Answered, EvaluationOutcome, Evaluator, Members, Subject
from tasks.evaluation.results import KEPT_PREDICTIONS, Prediction, plain
from tasks.evaluation.statistics import wilson_interval
from tasks.evaluation.validation_loss import require_finite_loss
from tasks.models.recipes import Capability


class Vlm(Evaluator):
    """The arguments of a task of kind `vlm`."""

    needs: ClassVar[frozenset[Capability]] = frozenset({"loss", "generate"})

    samples: Annotated[int, Field(ge=1)] = 1000
    """The first so many of the split are asked, since answers are slow to write."""
    most_tokens: Annotated[int, Field(ge=1)] = 64
    """The longest answer; what is cut off there is no exact match."""

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        return ("exact_match", "loss")

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """`exact_match`, the share of answers that are right to the letter but for case and outer spaces, and
        `loss` per token of the right answers, on the whole split.

        The chance of `exact_match` is what one gets who knows the questions and not the pictures: the answer
        given most often to each question. DataError without a question or for a loss that is not finite.
        """
        split = self.split or subject.held_out()
        losses = list(subject.losses(split))
        loss = sum(one.sum for one in losses) / sum(one.weight for one in losses)
        require_finite_loss(split, loss)
        answers = list(subject.answers(split, self.samples, self.most_tokens))
        if not answers:
            raise DataError(f"{split}: its first {self.samples:,} samples hold no question")
        right = sum(is_right(one) for one in answers)
        return EvaluationOutcome(
            metrics={"exact_match": right / len(answers), "loss": loss},
            split=split,
            samples=len(answers),
            intervals={"exact_match": wilson_interval(right, len(answers))},
            chance={"exact_match": known_by_heart(answers) / len(answers)},
            predictions=shown(answers),
        )


def is_right(answered: Answered) -> bool:
    """Whether what was said is the answer."""
    return plain(answered.said) == plain(answered.expected)


def known_by_heart(answers: list[Answered]) -> int:
    """How many are right by the commonest answer to each question."""
    by_question: dict[str, Counter[str]] = {}
    for one in answers:
        by_question.setdefault(one.question, Counter())[plain(one.expected)] += 1
    return sum(counted.most_common(1)[0][1] for counted in by_question.values())


def shown(answers: list[Answered]) -> list[Prediction]:
    """The conversations of the first samples, for a reader."""
    keys = list(dict.fromkeys(one.key for one in answers))[:KEPT_PREDICTIONS]
    return [
        Prediction(key=one.key, question=one.question, label=one.expected.strip(), predicted=one.said.strip())
        for one in answers
        if one.key in keys
    ]
