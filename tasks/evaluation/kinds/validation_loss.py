"""The loss of every held-out sample: the quantity that training lowers, on samples that it does not use.

The training measures it too, at each checkpoint and on some of the samples; this evaluator uses all of them,
or another split, in a job of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tasks.core.errors import DataError
from tasks.evaluation.contract import LOST_WEIGHTS, EvaluationOutcome, Evaluator, Members, Subject
from tasks.models.recipes import Capability


class ValidationLoss(Evaluator):
    """The arguments of a task of kind `validation_loss`."""

    needs: ClassVar[frozenset[Capability]] = frozenset({"loss"})

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        return ("loss",)

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """Return the mean loss by weight: by answer tokens for a language model, by samples for a contrast,
        which is then among `evaluate.batch_size` of them. DataError where it is not finite."""
        split = self.split or subject.held_out()
        loss, samples = mean_loss(subject, split)
        return EvaluationOutcome({"loss": loss}, split, samples)


def mean_loss(subject: Subject, split: str) -> tuple[float, int]:
    """Return the mean loss by weight and the number of samples; DataError where the loss is not finite."""
    losses = list(subject.losses(split))
    loss = sum(one.sum for one in losses) / sum(one.weight for one in losses)
    if not math.isfinite(loss):
        raise DataError(f"{split}: the loss is {loss}: {LOST_WEIGHTS}")
    return loss, sum(one.samples for one in losses)
