"""Digests that show whether anything has changed.

Three questions have a digest each. `rules_digest`, in the names of converted shards: would the same raw
sample become the same bytes? `config_digest`, in the manifest: does the user want the same, wherever the data
lies? `Fingerprint`: is everything listed as before, so that there is nothing to do?
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import xxhash
from blake3 import blake3
from pydantic import ValidationError

from tasks.core.errors import DataError
from tasks.core.files import digest
from tasks.core.schema import Config, Dataset
from tasks.dataset.formats import images
from tasks.dataset.modalities import MODALITIES
from tasks.dataset.sources import Container, RawSample, Source
from tasks.dataset.tar.format import Members
from tasks.dataset.version.build_info import read_build_info

NOT_SHAPING = {
    "output",
    "mirror",
    "keep",
    "private",
    "license",
    "reject_budget",
    "leak_budget",
    "source",
    "sources",
}
"""Keys of the dataset block that shape no byte of a shard: places, permissions, the reject budget. (Sources
count without their paths.)"""
CONVERTER = 12
"""Increase it whenever the same raw sample would become other bytes, statistics or reject reasons."""

PACKAGES = {
    "image_text": ("pillow",),
    "reinforced": ("pillow",),
    "chat": ("pillow",),
    "volume_report": ("numpy", "blosc2", "nibabel"),
}
"""The packages whose version may change a sample's bytes, by modality."""


def rules_digest(dataset: Dataset, *, with_filters: bool = True) -> str:
    """Digest what shapes a sample's members: modality, image and volume rules, filters of chat (which may
    drop a part of a sample) and on statistics, and the packages that decode and encode. Without
    `with_filters`, filters on statistics are left out, which change no sample."""
    measured = MODALITIES[dataset.modality].statistics
    block = dataset.model_dump(mode="json")
    return digest(
        {
            "converter": CONVERTER,
            "packages": packages(dataset),
            "modality": dataset.modality,
            "image": block["image"],
            "volume": block["volume"],
            "filter": {
                name: rule
                for name, rule in block["filter"].items()
                if (with_filters if name in measured else dataset.modality == "chat")
            },
        }
    )


def source_digests(dataset: Dataset, sources: Sequence[Source]) -> list[str]:
    """Digest, for each source, what shapes its samples' raw members: its place and its options."""
    configs = zip(sources, dataset.all_sources, strict=True)
    return [digest([source.location, config.model_dump(mode="json")]) for source, config in configs]


def reading_digest(dataset: Dataset) -> str:
    """Digest the rules by which raw members are read, wherever the sources lie: if it is equal, only the
    source can have changed them."""
    return digest([dataset.modality, _sources(dataset), dataset.filter if dataset.modality == "chat" else {}])


def packages(dataset: Dataset) -> dict[str, str | None]:
    """Return the installed versions of the modality's PACKAGES, None for one that is missing.

    The optional package that reads HEIC counts only where `encode` names a format to store such images in,
    and only where it is installed: then installing it makes the rejects be tried again.
    """
    found: dict[str, str | None] = {}
    for name in PACKAGES[dataset.modality]:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    if dataset.image.encode != "keep" and images.can_read_heic():
        found["pillow-heif"] = metadata.version("pillow-heif")
    return found


def config_digest(dataset: Dataset) -> str:
    """Digest the dataset block without NOT_SHAPING and paths."""
    block = dataset.model_dump(mode="json", exclude=NOT_SHAPING)
    return digest(block | {"sources": _sources(dataset)})


def _sources(dataset: Dataset) -> list[Any]:
    return [_without_paths(source.model_dump(mode="json")) for source in dataset.all_sources]


PLACES = ("path", "root")
"""Keys of sources that name where raw data lie."""


def _without_paths(block: Any) -> Any:
    if isinstance(block, dict):
        return {key: _without_paths(value) for key, value in block.items() if key not in PLACES}
    return [_without_paths(value) for value in block] if isinstance(block, list) else block


def members_digest(members: Members, *facts: str) -> Any:
    """Return a running 128-bit digest over raw members and the `facts` that distinguish two samples.

    It detects changes, not forgeries; for these the shards have their BLAKE3. XXH3 takes a tenth of its time.
    """
    suffixes = sorted(members)
    head = "\0".join([*facts, *(f"{suffix}\0{len(members[suffix])}" for suffix in suffixes)])
    running = xxhash.xxh3_128(head.encode("utf-8", "surrogatepass"))
    for suffix in suffixes:
        running.update(members[suffix])
    return running


def is_converted_alike(version: Path, dataset: Dataset) -> bool:
    """Whether the version's samples were read and converted by today's rules and packages, so that an equal
    row would give equal bytes."""
    try:
        info = read_build_info(version)
        built = Dataset.model_validate(info.dataset)
    except (DataError, ValidationError):
        return False
    is_same_program = info.converter == CONVERTER and info.versions == packages(dataset)
    digests = (partial(rules_digest, with_filters=False), reading_digest)
    same = all(digest_of(built) == digest_of(dataset) for digest_of in digests)
    return is_same_program and same


def another_converter(version: Path) -> str:
    """Return why no shard of the version can be reused if another Tarmac built it, else ""."""
    try:
        if read_build_info(version).converter == CONVERTER:
            return ""
    except DataError:
        return ""  # verify reports damage
    return (
        f"this Tarmac converts samples differently from the one that built version {version.name} (see "
        "CHANGELOG.md), so every shard is converted again"
    )


class Fingerprint:
    """A running digest over everything that is listed, in order."""

    def __init__(self, config: Config) -> None:
        self._digest = blake3()
        splits = config.dataset.splits
        self._used = sorted({*config.dataset.filter, *filter(None, (splits.group_column, splits.column))})
        self._add(config.name, rules_digest(config.dataset), config_digest(config.dataset))

    def add_containers(self, source: int, containers: Iterable[Container]) -> None:
        """Add containers, whose content is represented by their size and time of change."""
        for container in containers:
            self._add(source, container.name, container.stat)

    def add_scores(self, digest: str) -> None:
        """Add the digest of the scores that rules are about; "" where no rule is."""
        if digest:
            self._add(digest)

    def add_passed_over(self, kinds: Mapping[str, int]) -> None:
        """Add the counts of files that hold no samples, which the manifest shows."""
        if kinds:
            self._add(sorted(kinds.items()))

    def add_item(self, source: Source, item: RawSample) -> None:
        """Add a sample that has files of its own, with those of its fields that filters and splits use."""
        place, original_key, file, fields, content, (size, stamp), _, fault, *_ = item
        used = [fields.get(name) for name in self._used] if self._used else ""
        self._add_line(
            f"{source.location}\0{place}\0{original_key}\0{file}\0{size}\0{stamp}\0{content}\0{fault}\0{used}"
        )

    def _add(self, *facts: object) -> None:
        self._add_line("\0".join(map(str, facts)))

    def _add_line(self, line: str) -> None:
        self._digest.update(f"{line}\n".encode("utf-8", "surrogatepass"))

    def hexdigest(self) -> str:
        return str(self._digest.hexdigest())
