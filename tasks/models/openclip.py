"""open_clip without wandb, which a module of timm imports wherever it is installed.

A training process must not know a tracker: its import alone takes a second, reads the user's settings and
hooks into the interpreter. timm goes without it as if it were not installed.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

TRACKER = "wandb"


def _import_open_clip() -> Any:
    modules: dict[str, Any] = sys.modules
    if TRACKER in modules:
        return importlib.import_module("open_clip")
    modules[TRACKER] = None  # what is None here raises ImportError
    try:
        return importlib.import_module("open_clip")
    finally:
        del modules[TRACKER]


open_clip = _import_open_clip()
