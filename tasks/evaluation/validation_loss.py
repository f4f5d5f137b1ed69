"""The loss of every held-out sample: what training lowers, on samples that it did not see.

The training measures it too, at each checkpoint and on some of the samples; this one judges all of them, or
another split, and in a job of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

from tasks.core.errors import DataError
from tasks.evaluation.contract import EvaluationOutcome, Evaluator, Members, Subject
from tasks.models.recipes import Capability


class ValidationLoss(Evaluator):
    """The arguments of a task of kind `validation_loss`."""

    needs: ClassVar[frozenset[Capability]] = frozenset({"loss"})

    def metrics(self, samples: Iterator[Members] | None = None) -> Sequence[str]:
        return ("loss",)

    def evaluate(self, subject: Subject) -> EvaluationOutcome:
        """The mean by weight: by answers' tokens for a language model, by samples for a contrast, which is
        then among `evaluate.batch_size` of them. DataError when it is not finite."""
        split = self.split or subject.held_out()
        losses = list(subject.losses(split))
        loss = sum(one.sum for one in losses) / sum(one.weight for one in losses)
        require_finite_loss(split, loss)
        return EvaluationOutcome({"loss": loss}, split, sum(one.samples for one in losses))


def require_finite_loss(split: str, loss: float) -> None:
    if not math.isfinite(loss):
        raise DataError(
            f"{split}: the loss is {loss}, so the model's weights are lost; train anew with a lower train.lr "
            "or a longer train.warmup"
        )
