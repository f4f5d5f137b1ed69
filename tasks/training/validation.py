"""The loss on samples that are not trained on.

It is small and frequent, beside the evaluations, which judge a checkpoint in jobs of their own. It is
measured when the checkpoint is on its way to the disk: neither a bad held-out sample nor a stop costs the
steps before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tasks.core.schema import Config
from tasks.core.schema.judging import MOST_VALIDATED
from tasks.dataset.version.versions import read_manifest
from tasks.loader.batches import open_split
from tasks.loader.collate import Batch
from tasks.loader.feed import Feed
from tasks.loader.workers import Batches
from tasks.models.held_out import held_out
from tasks.models.task import Loss
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import TRAIN_AXIS, MetricsWriter, make_row
from tasks.runs.phases import PhaseWriter
from tasks.training.checkpoints import CheckpointSaver
from tasks.training.devices import Device
from tasks.training.meter import check_validation
from tasks.training.ranks import RankRequest, Ranks
from tasks.training.step import Step

LossOf = Callable[[Mapping[str, Any]], Loss]
logger = logging.getLogger(__name__)


class Validation:
    """Measures checkpoints of a run on samples of the held-out split, which the ranks share batch by
    batch."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        device: Device,
        metrics: MetricsWriter,
        phases: PhaseWriter,
        feed: Feed,
        saver: CheckpointSaver,
        ranks: Ranks,
    ) -> None:
        """Follow the config's `evaluate` block.

        DataError when the held-out split holds no samples: at once, because the training would find out only
        at its first checkpoint.
        """
        self._run, self._device, self._metrics, self._phases = run, device, metrics, phases
        self._feed, self._saver, self._ranks = feed, saver, ranks
        self._split = held_out(read_manifest(feed.data.version).splits)
        if self._split is not None:
            open_split(feed.data.version, self._split, feed.data.quarantined)
        self._most = MOST_VALIDATED if config.evaluate is None else config.evaluate.validation_samples

    def measure(self, step: int, weights: Step, workers: Sequence[int] = ()) -> float | None:
        """Write the loss of the checkpoint of `step`, which `weights` has, beside it and in the metrics.

        A stop breaks it off, before the next batch. Returns the loss, or None without one. DataError when it
        is not finite.
        """
        if self._split is None:
            return None
        self._phases.set("validate", step, workers)
        loss = self._loss(self._split, weights, lambda: self._phases.set("validate", step, workers))
        if loss is not None:
            self._metrics.append(make_row(TRAIN_AXIS, step, "val", {"val/loss": loss}))
            check_validation(loss, step, self._device.precision)
            if self._ranks.is_first:
                self._saver.add_val_loss(step, loss)
            logger.info("step %d: validation loss %.4f", step, loss)
        return loss

    def _loss(self, split: str, weights: Step, on_batch: Callable[[], None]) -> float | None:
        """The mean by weight, as the last batch, being smaller, has an easier contrast; None when stopped.

        It is added up in the order of the batches, so that it is the same on any number of ranks.
        """
        mine: list[tuple[float, float]] = []
        with weights.judging() as loss_of, self._feed.split(split, most=self._most) as batches:
            order = RankRequest.GO_ON
            while order is RankRequest.GO_ON:
                with self._ranks.agreeing() as vote:
                    vote.order, batch = self._next(batches)
                    if batch is not None and not self._ranks.shards:
                        mine.append(self._judged(loss_of, batch))
                    on_batch()
                order = vote.order
                if self._ranks.shards and order is RankRequest.GO_ON:
                    mine += self._judged_together(loss_of, batch)
        if order is RankRequest.STOP:
            return None
        longest = max(int(count) for count in self._ranks.of_all(torch.tensor(len(mine))))
        padded = torch.tensor([*mine, *[(0.0, 0.0)] * (longest - len(mine))], dtype=torch.float64)
        in_order: list[list[float]] = torch.stack(self._ranks.of_all(padded), dim=1).reshape(-1, 2).tolist()
        return sum(total for total, _ in in_order) / sum(weight for _, weight in in_order)

    def _next(self, batches: Batches) -> tuple[RankRequest, Batch | None]:
        """Return what this rank asks for, and its next batch if it has one."""
        if self._ranks.is_first and self._run.stop.exists():
            return RankRequest.STOP, None
        batch = next(batches, None)
        return (RankRequest.DONE if batch is None else RankRequest.GO_ON), batch

    def _judged(self, loss_of: LossOf, batch: Batch) -> tuple[float, float]:
        """Return sum and weight of the batch's loss."""
        with self._device.autocast():
            loss = loss_of(self._device.put(batch))
        return float(loss.sum), float(loss.weight)

    def _judged_together(self, loss_of: LossOf, batch: Batch | None) -> list[tuple[float, float]]:
        """Do that on all ranks, because weights in shards need all; one without a batch takes the first
        rank's, which has one as long as any has, and leaves it out."""
        counts = self._ranks.of_all(torch.tensor(int(batch is not None)))
        if all(map(bool, counts)):
            given = batch
        else:
            given = self._ranks.object_of_first(batch if self._ranks.is_first else None)
        assert given is not None
        judged = self._judged(loss_of, given if batch is None else batch)
        return [] if batch is None else [judged]
