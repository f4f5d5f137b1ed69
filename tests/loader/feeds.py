"""Batches of a version by a transform alone, for tests that are not about recipes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.core.schema import Loader
from tasks.loader.collate import Collate, stack
from tasks.loader.feed import Data, Feed
from tasks.loader.workers import Batches, Transform


@dataclass(frozen=True)
class One:
    """The same transform for training and for judging."""

    one: Transform
    collate: Collate = stack

    def transform(self, is_train: bool) -> Transform:
        return self.one


def feed_of(version: Path, transform: Transform, **options: Any) -> Feed:
    """Options are fields of a feed, of its data or of the block `loader`."""
    block = {
        name: options.pop(name)
        for name in list(options)
        if name in Loader.model_fields and name not in ("workers", "prefetch")
    }
    data = Data(version, options.pop("quarantined", ()))
    return Feed(
        (data,),
        One(transform),
        loader=Loader.model_construct(**{**Loader().model_dump(), **block}),
        **options,
    )


def train_batches(version: Path, transform: Transform, *, start_step: int = 0, **options: Any) -> Batches:
    feed = feed_of(version, transform, **options)
    return feed.train(feed.state(start_step))


def split_batches(
    version: Path, split: str, transform: Transform, *, batch_size: int, **options: Any
) -> Batches:
    feed = feed_of(version, transform, batch_size=batch_size, judged_at_once=batch_size, **options)
    return feed.split(split)
