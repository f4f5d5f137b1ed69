"""What code and packages an attempt ran with, so that a difference between attempts can be named."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "torchvision", "open_clip_torch", "webdataset", "numpy", "pillow", "safetensors")
"""The packages that the weights can hang on."""


def code_digest() -> str:
    """SHA-256 over the names and contents of the library's own sources, 12 digits."""
    root = Path(__file__).resolve().parents[1]
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:12]


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
