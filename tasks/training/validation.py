"""The loss on samples that are not trained on.

Small and frequent, beside the evaluations, which judge a checkpoint in jobs of their own. It is measured when
the checkpoint is on disk: neither a held-out sample that is bad nor a stop costs the steps before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tasks.core.quarantine import Entry
from tasks.core.schema import Config, Train
from tasks.dataset.versions import Manifest
from tasks.loader.batches import open_split, split_batches
from tasks.loader.workers import Batches
from tasks.models.held_out import held_out
from tasks.models.recipes import Recipe
from tasks.runs.folder import RunFolder
from tasks.runs.metrics import TRAIN_AXIS, MetricsWriter, make_row
from tasks.runs.phases import PhaseWriter
from tasks.training import checkpoints
from tasks.training.devices import Device
from tasks.training.finite import check_validation

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Validation:
    """Measures checkpoints of a run; `batches` opens the held-out split, and is None where there is none."""

    run: RunFolder
    recipe: Recipe
    device: Device
    metrics: MetricsWriter
    phases: PhaseWriter
    batches: Callable[[], Batches] | None

    def measure(self, step: int, model: nn.Module, workers: Sequence[int] = ()) -> None:
        """Write the loss of the checkpoint of `step`, which is that of `model`, beside it and in the metrics.

        A stop breaks it off, before the next batch. DataError when the loss is not finite.
        """
        if self.batches is None:
            return

        def goes_on() -> bool:
            self.phases.set("validate", step, workers)
            return not self.run.stop.exists()

        loss = self._loss(self.batches, model, goes_on)
        if loss is not None:
            self.metrics.append(make_row(TRAIN_AXIS, step, "val", {"val/loss": loss}))
            check_validation(loss, step, self.device.precision)
            checkpoints.add_val_loss(self.run, step, loss)
            logger.info("step %d: validation loss %.4f", step, loss)

    def _loss(
        self, opened: Callable[[], Batches], model: nn.Module, goes_on: Callable[[], bool]
    ) -> float | None:
        """The mean over the samples; the last batch, being smaller, has an easier contrast."""
        if not goes_on():
            return None
        total, samples = 0.0, 0
        model.eval()
        try:
            with torch.no_grad(), opened() as batches:
                for batch in batches:
                    if not goes_on():
                        return None
                    with self.device.autocast():
                        loss = self.recipe.loss(model, self.device.put(batch))
                    total += float(loss) * len(batch["key"])
                    samples += len(batch["key"])
        finally:
            model.train()
        return total / samples


def held_out_batches(
    version: Path,
    manifest: Manifest,
    recipe: Recipe,
    config: Config,
    options: Train,
    workers: int,
    quarantined: Sequence[Entry],
) -> Callable[[], Batches] | None:
    """Opens the held-out split in batches of the training's size; None when no split is held out.

    DataError when the split holds no samples: at once, for a training would find out at its first checkpoint.
    """
    split = held_out(manifest.splits)
    if split is None:
        return None
    open_split(version, split, quarantined)
    return partial(
        split_batches,
        version,
        split,
        recipe.transform(is_train=False),
        batch_size=options.batch_size,
        workers=workers,
        quarantined=quarantined,
        on_bad=config.loader.on_bad,
        bad_budget=config.loader.bad_budget,
    )
