"""What code and packages an attempt ran with, so that a difference between attempts can be named."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from tasks.core.files import code_digest

__all__ = ["PACKAGES", "code_digest", "differences", "versions"]

PACKAGES = ("torch", "torchvision", "open_clip_torch", "webdataset", "numpy", "pillow", "safetensors")
"""The packages that the weights can hang on."""


def versions() -> dict[str, str]:
    """Python's version and those of the installed PACKAGES; importing none of them."""
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
    """What changed between two attempts, in words; empty when nothing did."""
    changed = [
        f"{name} {before.get(name, 'not installed')} → {now.get(name, 'not installed')}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    return [*changed, *(["Tarmac's own code"] if code_before != code_now else [])]
