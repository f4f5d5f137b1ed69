"""Whether a config fits its sources, found out before anything is written or read at length."""

from __future__ import annotations

import os

from tasks.core.addresses import is_remote
from tasks.core.errors import UsageError
from tasks.core.schema import Dataset
from tasks.dataset import splits
from tasks.dataset.samples import MODALITIES
from tasks.dataset.sources import Source, open_sources
from tasks.dataset.sources.reading.columns import require


def check(dataset: Dataset) -> list[Source]:
    """The config's sources, ready to be listed; UsageError for a config that does not fit them."""
    splits.check(dataset.splits)
    _require_known_sizes(dataset)
    MODALITIES[dataset.modality].check(dataset)
    if dataset.mirror is not None:
        from tasks.dataset import mirror  # which brings in fsspec

        mirror.check(dataset.mirror)
    _require_apart(dataset)
    sources = open_sources(dataset)
    for source in sources:
        columns = source.columns()
        for name in dataset.filter:
            require("dataset.filter", name, columns, "the source")
        for key, column in (("group_by", dataset.splits.group_by), ("from", dataset.splits.column)):
            if column is not None:
                require(f"dataset.splits.{key}", column, columns, "the source")
    return sources


def _require_apart(dataset: Dataset) -> None:
    """A dataset inside the folder that it is made of would be a part of itself at the next build."""
    output = os.path.realpath(dataset.output)
    for source in dataset.all_sources:
        folder = os.path.realpath(source.path)
        if not is_remote(source.path) and os.path.isdir(folder) and f"{output}/".startswith(f"{folder}/"):
            raise UsageError(
                f"dataset.output: {dataset.output} lies inside the source {source.path}; put it beside it"
            )


def _require_known_sizes(dataset: Dataset) -> None:
    """Shards are planned before any sample is converted, so a maximum in bytes needs samples stored as they
    are."""
    if dataset.shard.bytes is None:
        return
    re_encodes = {
        "image.encode": dataset.image.encode != "keep",
        "image.max_side": dataset.image.max_side is not None,
    }
    for key, is_set in re_encodes.items():
        if is_set and dataset.modality != "volume_report":
            raise UsageError(
                f"dataset.shard.bytes: no maximum can be kept with dataset.{key}, because the size of "
                "re-encoded images is not known beforehand; use dataset.shard.samples instead"
            )
