"""The config of a whole pipeline: every key, its type, its default and what it means.

These pydantic models check what a person wrote; `tasks.core.config` reads the file and words the errors.
A field's description is what `tarmac schema` shows in an editor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.core.schema.block import Block, Folder
from tasks.core.schema.dataset import Dataset, ImageRules, ShardRules, Splits, VolumeRules
from tasks.core.schema.engine import BuildEngine, Engines, EvaluateEngine, TrainEngine
from tasks.core.schema.source import (
    ChatSource,
    ImageFolderSource,
    Join,
    Labels,
    Metadata,
    NiftiSource,
    NpzSource,
    Reports,
    ShardsSource,
    Source,
    TableSource,
    VolumeSource,
)
from tasks.core.schema.training import Evaluate, Loader, TaskSpec, Track, Train

# fmt: off
__all__ = [
    "Block", "BuildEngine", "ChatSource", "Config", "Dataset", "Engines", "Evaluate", "EvaluateEngine",
    "ImageFolderSource", "ImageRules", "Join", "Labels", "Loader", "Metadata", "NiftiSource", "NpzSource",
    "Reports", "Schedule", "ShardRules", "ShardsSource", "Source", "Splits", "TableSource", "TaskSpec",
    "Track", "Train", "TrainEngine", "VolumeRules", "VolumeSource",
]
# fmt: on


class Schedule(Block):
    """What `tarmac deploy` registers for this config."""

    cron: str
    then: Literal["build", "train"] = "build"
    """`train` trains and evaluates after each rebuild; an unchanged dataset changes nothing."""


class Config(Block):
    """A whole pipeline, from raw files to an evaluated model."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    runs: Folder = Path("runs")
    """Folder of the run folders."""
    dataset: Dataset
    loader: Loader = Loader()
    train: Train | None = None
    evaluate: Evaluate | None = None
    track: Track = Track()
    engine: Engines = Engines()
    schedule: Schedule | None = None

    @model_validator(mode="after")
    def _blocks_fit(self) -> Self:
        if self.evaluate is not None:
            if self.train is None:
                raise ValueError("evaluate needs a train block")
            if self.evaluate.every % self.train.checkpoint_every:
                raise ValueError(
                    f"evaluate.every ({self.evaluate.every}) must be a multiple of "
                    f"train.checkpoint_every ({self.train.checkpoint_every})"
                )
        if self.schedule is not None and self.schedule.then == "train" and self.train is None:
            raise ValueError("schedule.then: train needs a train block")
        return self
