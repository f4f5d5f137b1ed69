"""What tells whether anything has changed, as digests.

Three questions, three digests. `rules_digest`: would the same raw sample become the same bytes? It keys
converted shards. `config_digest`: were the user's wishes the same, wherever the data lies? It stands in the
manifest. `Fingerprint`: is everything listed as it was, so that there is nothing to do?
"""

from __future__ import annotations

from hashlib import blake2b
from importlib.metadata import version
from typing import Any

from tasks.core.files import digest
from tasks.core.schema import Config, Dataset

CONVERTER = 2
"""Raise it whenever the same raw sample would become other bytes, statistics or reject reasons."""


def rules_digest(dataset: Dataset) -> str:
    """Covers what shapes a sample's members: modality, image rules, sources without their place, decoder."""
    return digest(
        {
            "converter": CONVERTER,
            "pillow": version("pillow") if dataset.modality == "image_text" else None,
            "modality": dataset.modality,
            "image": dataset.image.model_dump(mode="json"),
            "sources": _sources(dataset),
        }
    )


def config_digest(dataset: Dataset) -> str:
    """The dataset block without output, keep, private and paths."""
    block = dataset.model_dump(mode="json", exclude={"output", "keep", "private", "source", "sources"})
    return digest(block | {"sources": _sources(dataset)})


def _sources(dataset: Dataset) -> list[Any]:
    paths: Any = {"path": True, "reports": {"path"}, "labels": {"path"}}
    return [source.model_dump(mode="json", exclude=paths) for source in dataset.all_sources]


class Fingerprint:
    """Running digest over every listed sample, in order."""

    def __init__(self, config: Config) -> None:
        self._digest = blake2b(digest_size=32)
        self.add(config.name, rules_digest(config.dataset), config_digest(config.dataset))

    def add(self, *facts: object) -> None:
        self._digest.update("\0".join(map(str, facts)).encode("utf-8", "surrogatepass") + b"\n")

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
