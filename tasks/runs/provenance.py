"""The code and packages that an attempt ran with, so that a difference between attempts can be named.

An attempt runs from a copy of the library's code in its own folder: whatever the checkout holds by the time a
queued attempt starts, or starts an evaluation, it runs what it was started with.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tasks
from tasks.core.files import code_digest

__all__ = ["PACKAGES", "code_digest", "differences", "snapshot", "versions"]

PACKAGES = ("torch", "torchvision", "open_clip_torch", "webdataset", "numpy", "pillow", "safetensors")
"""The packages that can affect the weights."""


def snapshot(place: Path) -> None:
    """Copy the library's package into `place`, a folder to be put on a process's PYTHONPATH.

    The compiled files of this Python go with it, so that the first import is no slower.
    """
    draft = place.with_name(f".{place.name}")
    for old in (draft, place):
        shutil.rmtree(old, ignore_errors=True)
    package = Path(tasks.__path__[0])
    shutil.copytree(package, draft / package.name, ignore=_other_caches)
    os.rename(draft, place)


def _other_caches(folder: str, names: list[str]) -> list[str]:
    if Path(folder).name != "__pycache__":
        return []
    return [name for name in names if not name.endswith(f".{sys.implementation.cache_tag}.pyc")]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed PACKAGES, without importing them."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def differences(
    code_before: str, before: Mapping[str, str], code_now: str, now: Mapping[str, str]
) -> list[str]:
    """Name what changed between two attempts; empty when nothing did."""
    changed = [
        f"{name} {before.get(name, 'not installed')} → {now.get(name, 'not installed')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    return [*changed, *(["Tarmac's own code"] if code_before != code_now else [])]
