"""The loss on samples that are not trained on.

Small and frequent, beside the evaluations, which judge a checkpoint in jobs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tasks.core.quarantine import Entry
from tasks.core.schema import Loader
from tasks.loader.batches import split_batches
from tasks.models.held_out import held_out
from tasks.models.recipes import Recipe
from tasks.training.devices import Device


@dataclass(frozen=True)
class Validation:
    """The held-out split of a version, in batches of the training's size."""

    recipe: Recipe
    version: Path
    split: str
    batch_size: int
    workers: int
    loader: Loader
    quarantined: Sequence[Entry]

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        version: Path,
        splits: Iterable[str],
        batch_size: int,
        workers: int,
        loader: Loader,
        quarantined: Sequence[Entry],
    ) -> Validation | None:
        """None when no split is held out."""
        split = held_out(splits)
        if split is None:
            return None
        return cls(recipe, version, split, batch_size, workers, loader, quarantined)

    def loss(self, model: nn.Module, device: Device, beat: Callable[[], None]) -> float:
        """The mean over the samples; the last batch, being smaller, has an easier contrast.

        `beat` is called at every batch, for a sign of life.
        """
        total, samples = 0.0, 0
        transform = self.recipe.transform(is_train=False)
        beat()
        model.eval()
        with (
            torch.no_grad(),
            split_batches(
                self.version,
                self.split,
                transform,
                batch_size=self.batch_size,
                workers=self.workers,
                quarantined=self.quarantined,
                on_bad=self.loader.on_bad,
                bad_budget=self.loader.bad_budget,
            ) as batches,
        ):
            for batch in batches:
                beat()
                with device.autocast():
                    loss = self.recipe.loss(model, device.put(batch))
                total += float(loss) * len(batch["key"])
                samples += len(batch["key"])
        model.train()
        return total / samples
