"""Checks that a config fits its sources, before anything is written or read at length."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.core.errors import UsageError
from tasks.core.files import require_writable
from tasks.core.patterns import base_folder, would_match
from tasks.core.schema import ChatSource, Dataset, ShardsSource, TableSource
from tasks.core.schema import Source as SourceConfig
from tasks.core.stores import is_remote
from tasks.dataset import filters, splits
from tasks.dataset.formats.measures import PictureMeasures
from tasks.dataset.modalities import MODALITIES, rules_on_fields
from tasks.dataset.sources import Source, of_containers, open_sources
from tasks.dataset.sources.tabular import require
from tasks.dataset.version import versions
from tasks.dataset.version.layout import STAGING, VERSIONS

MADE = (
    "versions/0/train/000000.tar",
    "versions/0/shards.parquet",
    "versions/0/samples/train.parquet",
    "versions/0/train/sizes.json",
    "quarantine.jsonl",
    "scores/model/0.parquet",
)
"""An example of each kind of file in a dataset."""
WORKED_IN = (STAGING, VERSIONS, "repair")


def check_sources(dataset: Dataset) -> list[Source]:
    """Return the config's sources, ready to be listed; UsageError for a config that does not fit them."""
    splits.check_splits(dataset.splits)
    require_writable(dataset.output, "dataset.output")
    versions.require_link(dataset.output)
    _require_known_sizes(dataset)
    MODALITIES[dataset.modality].check(dataset)
    if dataset.mirror is not None:
        from tasks.dataset.version import mirror  # imports fsspec, which is slow

        mirror.check_mirror(dataset.mirror)
    _require_apart(dataset)
    sources = open_sources(dataset)
    for source in sources:
        columns = source.columns()
        for name in rules_on_fields(dataset):
            modality = MODALITIES[dataset.modality]
            known = [*columns, *modality.statistics, *modality.scores]
            require("dataset.filter", name, known, "the source")
        for key, column in (("group_by", dataset.splits.group_column), ("from", dataset.splits.column)):
            if column is not None:
                require(f"dataset.splits.{key}", column, columns, "the source")
    _require_decoding(dataset, sources)
    return sources


def _require_decoding(dataset: Dataset, sources: Sequence[Source]) -> None:
    """UsageError for a rule on what is measured of pixels where pictures are not decoded."""
    if dataset.image.check != "header" or dataset.modality == "volume_report":
        return
    for name in measured_rules(dataset, sources).keys() & {*PictureMeasures._fields}:
        raise UsageError(
            f"dataset.filter.{name}: is not measured with image.check: header, which decodes nothing; set "
            "dataset.image.check: decode, or leave the rule out"
        )


def measured_rules(dataset: Dataset, sources: Sequence[Source]) -> dict[str, Any]:
    """Return the rules of `filter` on what the build measures of each sample: its statistics, as far as no
    source has a column of that name."""
    return _rules_on(MODALITIES[dataset.modality].statistics, dataset, sources)


def scored_rules(dataset: Dataset, sources: Sequence[Source]) -> dict[str, Any]:
    """Return the rules of `filter` on what models say of each sample, as far as no source has a column of
    that name."""
    return _rules_on(MODALITIES[dataset.modality].scores, dataset, sources)


def _rules_on(known: Iterable[str], dataset: Dataset, sources: Sequence[Source]) -> dict[str, Any]:
    rules = {name: dataset.filter[name] for name in sorted(dataset.filter.keys() & set(known))}
    columns = [set(source.columns()) for source in sources] if rules else []
    for name in list(rules):
        lacking, having = (
            [
                one.path
                for one, names in zip(dataset.all_sources, columns, strict=True)
                if (name in names) is has
            ]
            for has in (False, True)
        )
        if having and lacking:
            raise UsageError(
                f"dataset.filter.{name}: {having[0]} has a column {name}, and {lacking[0]} has none, where "
                "the rule would be about what the build measures; rename the column, or build two datasets"
            )
        if having:
            del rules[name]
    return rules


def fewer_than(dataset: Dataset, enough: int) -> int | None:
    """Return how many samples a build can accept at most, if that is less than `enough`; None if there are
    so many, or the containers of a source do not state it. No more than `enough` samples are listed."""
    found = 0
    for source in check_sources(dataset):
        for container in source.containers():
            if source.is_sequential:
                stated = of_containers(source).stated(container)
                if stated is None:
                    return None
                found += stated
            else:
                items = (one for one in source.items(container) if one.fault is None)
                taken = (one for one in items if filters.passes(rules_on_fields(dataset), one.fields))
                found += sum(1 for _ in islice(taken, enough - found))
            if found >= enough:
                return None
    return found


def _require_apart(dataset: Dataset) -> None:
    """UsageError for a dataset inside a source, which would become its own input in the next build, and for a
    source inside the folders of a build, which removes files there."""
    output = os.path.realpath(dataset.output)
    for source, path in ((one, place) for one in dataset.all_sources for place in _paths(one)):
        if is_remote(path):
            continue
        if lies_inside(dataset.output, path):
            raise UsageError(
                f"dataset.output: {dataset.output} lies inside the source {path}; put it beside it, such as "
                f"{beside(path)}"
            )
        if source.kind == "table" and _is_beside_its_table(dataset.output, path):
            raise UsageError(
                f"dataset.output: {dataset.output} lies in the folder of the table {path}, so the raw data "
                f"would look like a dataset; put it beside it, such as {beside(path)}"
            )
    for path in (place for one in dataset.all_sources for place in (*_paths(one), *_roots(one))):
        if any(f"{os.path.realpath(path)}/".startswith(f"{output}/{name}/") for name in WORKED_IN):
            raise UsageError(
                f"dataset.output: a build removes files in {dataset.output}, so the source {path} must not "
                "lie there; put the dataset beside the source"
            )


def lies_inside(output: str | Path, path: str) -> bool:
    """Whether a source's local path would match files of a dataset in `output`."""
    folder = os.path.realpath(output)
    return any(would_match(path, f"{folder}/{name}") for name in MADE)


def _is_beside_its_table(output: Path, path: str) -> bool:
    """Whether a new dataset would lie in the folder of a table. False if that is the working directory or
    above it, as in a project that keeps its table next to the folder of its datasets."""
    folder, place = Path(base_folder(path)).resolve(), output.resolve()
    is_new = not any((one / VERSIONS).is_dir() for one in (place, *place.parents))
    return is_new and place.is_relative_to(folder) and not Path.cwd().is_relative_to(folder)


def beside(path: str) -> str:
    """Return a folder for a dataset outside the sources at this path, absolute if the path is."""
    folder = f"{base_folder(path)}-tarmac"
    return folder if os.path.isabs(path) else os.path.relpath(folder)


def _paths(source: SourceConfig) -> list[str]:
    """Return the paths of a source and of the tars that are joined to it."""
    joined = source.join if isinstance(source, ShardsSource) else []
    return [source.path, *(one.path for one in joined)]


def _roots(source: SourceConfig) -> list[str]:
    """Return the folder of the images that a table names where the config gives it."""
    root = source.root if isinstance(source, TableSource | ChatSource) else None
    return [] if root is None else [root]


def _require_known_sizes(dataset: Dataset) -> None:
    """UsageError for a maximum shard size in bytes where samples are re-encoded, because shards are planned
    before any sample is converted."""
    if dataset.shard.bytes is None or dataset.modality == "volume_report":
        return
    for key, stored_as_is in (("encode", "keep"), ("max_side", None)):
        if getattr(dataset.image, key) != stored_as_is:
            raise UsageError(
                f"dataset.shard.bytes: a maximum cannot be kept with dataset.image.{key}, because the size "
                "of re-encoded images is not known in advance; use dataset.shard.samples instead"
            )
