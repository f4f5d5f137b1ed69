"""The dataset block as build.json keeps it, so that a version can be repaired without its config at hand.

Paths are absolute. An address that says who may read it (a password, a signature) is kept without that, and
told of, because build.json is copied to mirrors and shown to people.
"""

from __future__ import annotations

import os
from typing import Any

from tasks.core.stores import is_remote, redact
from tasks.core.schema import Dataset
from tasks.dataset.build.rules import rules_of


def kept(dataset: Dataset) -> tuple[Any, list[str]]:
    """The block, and the keys of addresses that are kept only in part."""
    cut: list[str] = []
    block = _without_secrets(rules_of(dataset), "dataset", cut)
    block["output"] = os.path.abspath(dataset.output)
    block["mirror"] = None
    return block, [key for key in cut if key != "dataset.mirror"]


def _without_secrets(value: Any, key: str, cut: list[str]) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(entry, f"{key}.{name}", cut) for name, entry in value.items()}
    if isinstance(value, list):
        return [_without_secrets(entry, f"{key}[{number}]", cut) for number, entry in enumerate(value)]
    if isinstance(value, str) and is_remote(value) and redact(value) != value:
        cut.append(key)
        return redact(value)
    return value
