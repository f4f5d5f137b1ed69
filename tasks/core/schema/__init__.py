"""The config of a whole pipeline: every key with its type, default and meaning.

These pydantic models check what a person wrote; `tasks.core.config` reads the file and words the errors.
A field's description is what `tarmac schema` shows in an editor.
"""

from __future__ import annotations

import difflib
import os
import zoneinfo
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.core.schema.block import Block, Duration, Folder
from tasks.core.schema.dataset import Dataset, ImageRules, ShardRules, Splits, VolumeRules
from tasks.core.schema.engine import BuildEngine, Engines, EvaluateEngine, TrainEngine
from tasks.core.schema.judging import Evaluate, TaskSpec
from tasks.core.schema.recipes import EXTERNAL, RECIPES
from tasks.core.schema.reinforce import Reinforce
from tasks.core.schema.score import Scoring
from tasks.core.schema.source import (
    ChatSource,
    ImageFolderSource,
    Join,
    Labels,
    Metadata,
    NiftiSource,
    NpzSource,
    ReportTable,
    ShardsSource,
    Source,
    TableSource,
    VolumeSource,
)
from tasks.core.schema.training import DataShare, Loader, Track, Train

# fmt: off
__all__ = [
    "Block", "BuildEngine", "ChatSource", "Config", "DataShare", "Dataset", "Engines", "Evaluate",
    "EvaluateEngine", "ImageFolderSource", "ImageRules", "Join", "Labels", "Loader", "Metadata",
    "NiftiSource", "NpzSource", "Reinforce", "ReportTable", "Schedule", "Scoring", "ShardRules",
    "ShardsSource", "Source", "Splits", "TableSource", "TaskSpec", "Track", "Train", "TrainEngine",
    "VolumeRules", "VolumeSource",
]
# fmt: on


class Schedule(Block):
    """When a Prefect server rebuilds the dataset automatically; `tarmac deploy` registers the schedule."""

    cron: str
    """A cron expression with five fields: minute, hour, day of the month, month, day of the week."""
    timezone: str = "UTC"
    """The time zone of `cron`, such as `Europe/Berlin`."""
    then: Literal["build", "train"] = "build"
    """`train` trains and evaluates after each rebuild that changed the dataset."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """How many flow runs of each deployment of this config may run at once; further ones wait. Unless given,
    the limit that the deployment's page has stays."""
    fresh_within: Duration | None = None
    """A dataset that was last brought up to date longer ago, such as `36h`, is reported as stale by `tarmac
    status`, and by `tarmac up` as the event `tarmac.dataset.stale`."""

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, value: str) -> str:
        known = zoneinfo.available_timezones() | {"UTC"}
        if value not in known:
            near = difflib.get_close_matches(value, known, n=1) or ["Europe/Berlin"]
            raise ValueError(f"must be a time zone such as {near[0]}, not {value!r}")
        return value


class Config(Block):
    """A whole pipeline, from raw files to an evaluated model."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    """The beginning of the names of runs, such as `birds-clip`."""
    runs: Folder = Path("runs")
    """Folder in which the run folders are created."""
    dataset: Dataset
    """The raw data, and the dataset that is built from them."""
    reinforce: Reinforce | None = None
    score: Scoring | None = None
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
        if self.train is not None:
            if self.evaluate is not None and self.evaluate.start and self.train.recipe == EXTERNAL:
                raise ValueError(
                    "evaluate.start: a command saves no checkpoint before its first step; take it out"
                )
            self.train.require_even(self.engine.train.processes)
            if (self.engine.train.nodes or 1) > 1 and self.train.recipe == EXTERNAL:
                raise ValueError("engine.train.nodes: a command is started on one node; take the key out")
            if self.engine.train.shard:
                self._require_shardable(self.train)
            self._require_mixable(self.train)
            self._require_packable(self.train)
        if self.schedule is not None and self.schedule.then == "train" and self.train is None:
            raise ValueError("schedule.then: train needs a train block")
        return self

    @property
    def judged_at_once(self) -> int:
        """Samples per pass of evaluations and of the validation loss."""
        assert self.train is not None
        row, train = RECIPES[self.train.recipe], self.train
        trained = train.batch_size if row.compares_samples else train.micro_batch or train.batch_size
        given = None if self.evaluate is None else self.evaluate.batch_size
        return given or min(row.judged_at_once, trained)

    @property
    def evaluates_start(self) -> bool:
        """Whether the weights that the training starts from are evaluated, as its step 0."""
        if self.evaluate is None or self.train is None:
            return False
        if self.evaluate.start is not None:
            return self.evaluate.start
        return self.train.recipe != EXTERNAL and self.train.model.get("pretrained") is not None

    @property
    def evaluated_steps(self) -> list[int]:
        """The steps whose checkpoints are evaluated, in a training whose number of steps is known."""
        if self.evaluate is None or self.train is None:
            return []
        assert self.train.steps is not None, "epochs are turned into steps when a run is planned"
        return [*([0] if self.evaluates_start else []), *self.evaluate.steps(self.train.steps)]

    def _require_shardable(self, train: Train) -> None:
        key = "engine.train.shard"
        if train.recipe == EXTERNAL:
            raise ValueError(f"{key}: has no effect on another trainer's weights; take it out")
        if train.precision == "fp16":
            raise ValueError(f"{key}: goes with train.precision bf16 or fp32, not with fp16")
        if train.lora is not None:
            raise ValueError(
                f"{key}: does not go with train.lora, whose weights are few; take one of them out"
            )

    def _require_packable(self, train: Train) -> None:
        if train.pack is not None and self.loader.reader == "streaming":
            raise ValueError("train.pack: reader: streaming does not know sample lengths; use indexed")
        if train.pack is not None and self.loader.stage is not None:
            raise ValueError("train.pack: loader.stage cannot know in advance what a pack holds; remove it")
        if train.pack is not None and self.loader.on_bad == "replace":
            raise ValueError(
                "train.pack: on_bad: replace puts samples of other lengths into a pack; use on_bad: raise, "
                "and exclude bad samples with `tarmac repair DATASET --quarantine`"
            )

    def _require_mixable(self, train: Train) -> None:
        folders = [os.path.abspath(share.dataset) for share in train.data or ()]
        if not folders:
            return
        if os.path.abspath(self.dataset.output) not in folders:
            raise ValueError(
                f"train.data: {self.dataset.output}, the dataset's output, must be in the list, because "
                "checkpoints are judged on its held-out split"
            )
        twice = [folder for folder in folders if folders.count(folder) > 1]
        if twice:
            raise ValueError(f"train.data: {twice[0]} is listed twice; list it once with one weight")
        if len(folders) > 1 and self.loader.reader == "streaming":
            raise ValueError("train.data: reader: streaming reads one dataset only; use reader: indexed")
