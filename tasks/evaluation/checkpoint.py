"""A checkpoint of a run as evaluators meet it: its model loaded, and the data its run was trained from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model
from torch import nn

from tasks.core.errors import DataError, UsageError
from tasks.core.quarantine import Entry
from tasks.core.schema import Config, Loader
from tasks.dataset.versions import read_manifest
from tasks.evaluation.contract import Embedded, Embeddings, Members
from tasks.loader.batches import split_batches
from tasks.loader.settings import read_settings
from tasks.loader.workers import Transform
from tasks.models import recipes
from tasks.models.held_out import held_out, nothing_held_out
from tasks.models.recipes import Recipe
from tasks.runs import record
from tasks.runs.checkpoints import Checkpoint, is_sound
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.quarantine import of_run


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The `Subject` of evaluations. On a CPU it keeps to one process, as a training needs the cores."""

    recipe: Recipe
    model: nn.Module
    device: torch.device
    version: Path
    batch_size: int
    workers: int
    loader: Loader
    quarantined: Sequence[Entry]

    @classmethod
    def open(cls, run: RunFolder, config: Config, step: int) -> LoadedCheckpoint:
        """DataError when there is no sound checkpoint of `step`."""
        if config.train is None:
            raise UsageError(f"{run.config}: has no train block, so there is no model to evaluate")
        checkpoint = Checkpoint(step, run.checkpoint(step))
        if not is_sound(checkpoint):
            raise DataError(f"{checkpoint.path}: missing or torn; resume the run and it is written again")
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        recipe = recipes.load(config.train)
        model = recipe.build_model(pretrained=False)
        load_model(model, checkpoint.path / "model.safetensors")
        return cls(
            recipe=recipe,
            model=model.to(device).eval(),
            device=device,
            version=version_path(record.load(run).data[0]),
            batch_size=config.train.batch_size,
            workers=read_settings(run.loader).workers if device.type == "cuda" else 0,
            loader=config.loader,
            quarantined=of_run(run),
        )

    def held_out(self) -> str:
        splits = read_manifest(self.version).splits
        found = held_out(splits)
        if found is None:
            raise DataError(nothing_held_out(self.version, splits))
        return found

    def embed_images(self, split: str, extract: Callable[[Members], str]) -> Iterator[Embedded]:
        transform = Extracting(self.recipe.transform(is_train=False), extract)
        with split_batches(
            self.version,
            split,
            transform,
            batch_size=self.batch_size,
            workers=self.workers,
            quarantined=self.quarantined,
            on_bad=self.loader.on_bad,
            bad_budget=self.loader.bad_budget,
        ) as batches:
            for batch in batches:
                with torch.inference_mode():
                    embeddings = self.recipe.embed_images(self.model, self._moved(batch))
                yield Embedded(batch["key"], embeddings.float().cpu().numpy(), batch["extracted"])

    def embed_texts(self, texts: Sequence[str]) -> Embeddings:
        with torch.inference_mode():
            parts = [
                self.recipe.embed_texts(self.model, texts[start : start + self.batch_size]).float().cpu()
                for start in range(0, len(texts), self.batch_size)
            ]
        embeddings: Embeddings = torch.cat(parts).numpy()
        return embeddings

    def tokens(self, texts: Sequence[str]) -> Sequence[bytes]:
        return [row.tobytes() for row in self.recipe.tokenize(texts).numpy()]

    def _moved(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: value.to(self.device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }


@dataclass(frozen=True)
class Extracting:
    """A transform with what an evaluator wants to know of each sample beside its tensors."""

    transform: Transform
    extract: Callable[[Members], str]

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
        return {**self.transform(sample, generator_seed), "extracted": self.extract(sample)}
