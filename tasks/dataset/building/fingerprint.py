"""Whether anything has changed, as digests.

Three questions, three digests. `rules_digest`: would the same raw sample become the same bytes? It keys
converted shards. `config_digest`: were the user's wishes the same, wherever the data lies? It stands in the
manifest. `Fingerprint`: is everything listed as it was, so that there is nothing to do?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import xxhash
from blake3 import blake3

from tasks.core.errors import DataError
from tasks.core.files import digest
from tasks.core.schema import Config, Dataset
from tasks.dataset.build_info import read_build_info
from tasks.dataset.sources import Container, RawSample, Source
from tasks.dataset.tar.format import Members

NOT_SHAPING = {"output", "mirror", "keep", "private", "license", "reject_budget", "source", "sources"}
"""Keys of the dataset block that shape no byte of a shard: where things lie, who may see and use them, how
many rejects are too many. (Sources count without their paths.)"""
AT_ONCE = 1000
"""Samples between two updates of a digest."""
CONVERTER = 8
"""Raise it whenever the same raw sample would become other bytes, statistics or reject reasons."""


PACKAGES = {
    "image_text": ("pillow",),
    "reinforced": ("pillow",),
    "chat": ("pillow",),
    "volume_report": ("numpy", "blosc2", "nibabel"),
}
"""Whose version may change a sample's bytes."""


def rules_digest(dataset: Dataset) -> str:
    """Covers what shapes a sample's members: modality, image and volume rules, filters (which
    may drop a part of a sample), and the packages that decode and encode."""
    return digest(
        {
            "converter": CONVERTER,
            "packages": packages(dataset.modality),
            "modality": dataset.modality,
            "image": dataset.image.model_dump(mode="json"),
            "volume": dataset.volume.model_dump(mode="json"),
            "filter": dataset.filter if dataset.modality == "chat" else {},
        }
    )


def source_digests(dataset: Dataset, sources: Sequence[Source]) -> list[str]:
    """Of each source, what shapes its samples' raw members: its place and its options."""
    configs = zip(sources, dataset.all_sources, strict=True)
    return [digest([source.location, config.model_dump(mode="json")]) for source, config in configs]


def reading_digest(dataset: Dataset) -> str:
    """Covers what shapes a sample's raw members wherever the sources lie: by the same rules, only the source
    can have changed them."""
    return digest([dataset.modality, _sources(dataset), dataset.filter if dataset.modality == "chat" else {}])


def packages(modality: str) -> dict[str, str | None]:
    """The versions of PACKAGES that are installed."""
    return {name: _version(name) for name in PACKAGES[modality]}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def config_digest(dataset: Dataset) -> str:
    """The dataset block without NOT_SHAPING and paths."""
    block = dataset.model_dump(mode="json", exclude=NOT_SHAPING)
    return digest(block | {"sources": _sources(dataset)})


def _sources(dataset: Dataset) -> list[Any]:
    return [_without_paths(source.model_dump(mode="json")) for source in dataset.all_sources]


def _without_paths(block: Any) -> Any:
    if isinstance(block, dict):
        return {key: _without_paths(value) for key, value in block.items() if key != "path"}
    return [_without_paths(value) for value in block] if isinstance(block, list) else block


def members_digest(members: Members, *facts: str) -> Any:
    """A running 128-bit digest over raw members and what else tells two samples apart.

    It tells changes, not forgeries: the shards have their BLAKE3. (XXH3 takes a tenth of BLAKE3's time.)
    """
    suffixes = sorted(members)
    head = "\0".join([*facts, *(f"{suffix}\0{len(members[suffix])}" for suffix in suffixes)])
    running = xxhash.xxh3_128(head.encode("utf-8", "surrogatepass"))
    for suffix in suffixes:
        running.update(members[suffix])
    return running


def another_converter(version: Path) -> str:
    """Why no shard of a version can be taken over, where an earlier or later Tarmac has built it; else ""."""
    try:
        if read_build_info(version).converter == CONVERTER:
            return ""
    except DataError:
        return ""  # verify is who reports damage
    return (
        f"this Tarmac converts samples otherwise than the one that built version {version.name} (see "
        "CHANGELOG.md), so every shard is converted anew"
    )


class Fingerprint:
    """Running digest over all that is listed, in order."""

    def __init__(self, config: Config) -> None:
        self._digest = blake3()
        self._waiting: list[str] = []
        splits = config.dataset.splits
        self._used = sorted({*config.dataset.filter, *filter(None, (splits.group_by, splits.column))})
        self._add(config.name, rules_digest(config.dataset), config_digest(config.dataset))

    def add_containers(self, source: int, containers: Iterable[Container]) -> None:
        """Containers whose content is known by their size and time of change alone."""
        for container in containers:
            self._add(source, container.name, container.stat)

    def add_passed_over(self, kinds: Mapping[str, int]) -> None:
        """Files that are read as nothing, which the manifest counts."""
        if kinds:
            self._add(sorted(kinds.items()))

    def add_item(self, source: Source, item: RawSample) -> None:
        """A sample that has files of its own; of its fields, only those that filters and splits use count."""
        place, original_key, file, fields, content, (size, stamp), _, fault, *_ = item
        used = [fields.get(name) for name in self._used] if self._used else ""
        self._add_line(
            f"{source.location}\0{place}\0{original_key}\0{file}\0{size}\0{stamp}\0"
            f"{content}\0{fault}\0{used}\n"
        )

    def _add(self, *facts: object) -> None:
        self._add_line("\0".join(map(str, facts)) + "\n")

    def _add_line(self, line: str) -> None:
        self._waiting.append(line)
        if len(self._waiting) == AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._digest.update("".join(self._waiting).encode("utf-8", "surrogatepass"))
        self._waiting.clear()

    def hexdigest(self) -> str:
        self._flush()
        return str(self._digest.hexdigest())
