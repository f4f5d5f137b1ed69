"""What of a training is most likely a mistake; it is done as the config says all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tasks.core.schema import Config, TableSource
from tasks.runs.data import missing_shares, overfull


def doubts(config: Config, version: Path) -> Iterator[str]:
    """One sentence each, which begins with the key; `config` is a resolved one. DataError for a version that
    has nothing to train on."""
    yield from doubts_of(config)
    if (batch := overfull(config, version)) is not None and not batch.is_wrong:  # else it is refused
        yield f"train.batch_size: {batch.problem}"


def doubts_of(config: Config) -> Iterator[str]:
    """Those that show without any data; of the warm-up, where the steps are known."""
    splits = config.dataset.splits
    tables = [source for source in config.dataset.all_sources if isinstance(source, TableSource)]
    shared = [table.image for table in tables if isinstance(table.key, list) and table.image in table.key]
    if shared and splits.shares and splits.group_by is None:
        yield (
            "dataset.splits: rows that share an image may come into different splits, and the model is "
            f"judged on what it was trained on; add group_by: {shared[0]}"
        )
    train = config.train
    if train is not None and train.steps is not None and train.warmup_steps >= train.steps:
        yield (
            f"train.warmup: all {train.steps:,} steps are among the {train.warmup_steps:,} of the warm-up, "
            "so the learning rate only rises"
        )
    for dataset in missing_shares(config):
        yield f"train.data: {dataset} holds no version of a dataset yet; build it before the training"
