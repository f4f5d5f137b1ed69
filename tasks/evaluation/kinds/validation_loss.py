"""The loss of every held-out sample: the quantity that training lowers, on samples that it does not use.

The training measures it too, at each checkpoint and on some of the samples; this evaluator uses all of them,
or another split, in a job of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tasks.core.errors import DataError
from tasks.evaluation.contract import LOST_WEIGHTS, BatchLoss, EvaluationOutcome, Evaluator, Members, Subject
from tasks.evaluation.samples import Formula, JudgedSamples
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
        loss, losses = mean_loss(subject, split)
        samples = sum(one.samples for one in losses)
        return EvaluationOutcome({"loss": loss}, split, samples, by_sample=judged_batches(losses))


def mean_loss(subject: Subject, split: str) -> tuple[float, list[BatchLoss]]:
    """Return the mean loss by weight, and the losses of the batches; DataError where it is not finite."""
    losses = list(subject.losses(split))
    loss = sum(one.sum for one in losses) / sum(one.weight for one in losses)
    if not math.isfinite(loss):
        raise DataError(f"{split}: the loss is {loss}: {LOST_WEIGHTS}")
    return loss, losses


def judged_batches(losses: Sequence[BatchLoss]) -> JudgedSamples:
    """Return one row per batch, by the key of its first sample: a contrast compares the samples of a batch,
    so their losses are not independent. A row's item is the batch's number and size, which show whether
    another evaluation had the same batches."""
    return JudgedSamples(
        keys=[one.first_key for one in losses],
        items=[f"batch {number} of {one.samples} samples" for number, one in enumerate(losses)],
        groups=[f"batch {number}" for number in range(len(losses))],
        columns={
            "loss": np.array([one.sum / one.weight for one in losses]),
            "weight": np.array([one.weight for one in losses]),
        },
        formulas={"loss": Formula("mean", ["loss", "weight"])},
    )
