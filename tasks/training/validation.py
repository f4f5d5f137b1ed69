"""The loss on samples that are not trained on.

Small and frequent, beside the evaluations, which judge a checkpoint in jobs of their own. It is measured when
the checkpoint is on its way to the disk: neither a held-out sample that is bad nor a stop costs the steps
before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tasks.core.schema import Config
from tasks.core.schema.training import MOST_VALIDATED
from tasks.dataset.versions import Manifest
from tasks.loader.batches import open_split
from tasks.loader.feed import Feed
from tasks.loader.workers import Batches
from tasks.models.held_out import held_out
from tasks.models.task import Task
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import TRAIN_AXIS, MetricsWriter, make_row
from tasks.runs.phases import PhaseWriter
from tasks.training.aside import CheckpointSaver
from tasks.training.devices import Device
from tasks.training.finite import check_validation
from tasks.training.ranks import ALONE, RankRequest, Ranks
from tasks.training.step import Step

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Validation:
    """Measures checkpoints of a run on `most` samples of the held-out split, which the ranks share batch by
    batch; `split` is None where there is none."""

    run: RunFolder
    device: Device
    metrics: MetricsWriter
    phases: PhaseWriter
    feed: Feed
    aside: CheckpointSaver
    split: str | None
    most: int = MOST_VALIDATED
    ranks: Ranks = ALONE

    @classmethod
    def of(
        cls,
        run: RunFolder,
        config: Config,
        device: Device,
        metrics: MetricsWriter,
        phases: PhaseWriter,
        feed: Feed,
        aside: CheckpointSaver,
        manifest: Manifest,
        ranks: Ranks,
    ) -> Validation:
        """By the config's `evaluate` block. DataError when the held-out split holds no samples: at once, for
        a training would find out at its first checkpoint."""
        split = held_out(manifest.splits)
        if split is not None:
            open_split(feed.data.version, split, feed.data.quarantined)
        most = MOST_VALIDATED if config.evaluate is None else config.evaluate.validation_samples
        return cls(run, device, metrics, phases, feed, aside, split, most, ranks)

    def measure(self, step: int, weights: Step, workers: Sequence[int] = ()) -> None:
        """Write the loss of the checkpoint of `step`, which `weights` has, beside it and in the metrics.

        A stop breaks it off, before the next batch. DataError when the loss is not finite.
        """
        if self.split is None:
            return
        self.phases.set("validate", step, workers)
        loss = self._loss(self.split, weights, lambda: self.phases.set("validate", step, workers))
        if loss is not None:
            self.metrics.append(make_row(TRAIN_AXIS, step, "val", {"val/loss": loss}))
            check_validation(loss, step, self.device.precision)
            if self.ranks.is_first:
                self.aside.add_val_loss(step, loss)
            logger.info("step %d: validation loss %.4f", step, loss)

    def _loss(self, split: str, weights: Step, on_batch: Callable[[], None]) -> float | None:
        """The mean by weight; the last batch, being smaller, has an easier contrast. None when stopped.

        It is added up in the order of the batches, so that it is the same on any number of ranks.
        """
        mine: list[tuple[float, float]] = []
        with weights.judging() as task, self.feed.split(split, most=self.most) as batches:
            order = RankRequest.GO_ON
            while order is RankRequest.GO_ON:
                with self.ranks.agreeing() as vote:
                    vote.order = self._judge_next(task, batches, mine)
                    on_batch()
                order = vote.order
        if order is RankRequest.STOP:
            return None
        longest = max(int(count) for count in self.ranks.of_all(torch.tensor(len(mine))))
        padded = torch.tensor([*mine, *[(0.0, 0.0)] * (longest - len(mine))], dtype=torch.float64)
        in_order: list[list[float]] = torch.stack(self.ranks.of_all(padded), dim=1).reshape(-1, 2).tolist()
        return sum(total for total, _ in in_order) / sum(weight for _, weight in in_order)

    def _judge_next(self, task: Task, batches: Batches, judged: list[tuple[float, float]]) -> RankRequest:
        """Append sum and weight of the next batch; what this rank asks for then."""
        if self.ranks.is_first and self.run.stop.exists():
            return RankRequest.STOP
        batch = next(batches, None)
        if batch is None:
            return RankRequest.DONE
        with self.device.autocast():
            loss = task(self.device.put(batch))
        judged.append((float(loss.sum), float(loss.weight)))
        return RankRequest.GO_ON
