"""Count the tokens of a caption with CLIP's tokenizer where it is installed, for pages that show them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

ENDS = 2
"""The start and end tokens, which count towards the context."""


def caption_counter() -> Callable[[str], int] | None:
    """Return a function that counts a caption's tokens with start and end; None where open_clip is
    missing."""
    package = find_spec("open_clip")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).with_name("tokenizer.py")
    return lambda text: len(_tokenizer(path).encode(text)) + ENDS


@cache
def _tokenizer(path: Path) -> Any:
    """Load open_clip's SimpleTokenizer from its own file.

    The package would import timm and torch, which takes seconds; splitting a text needs neither. The file
    uses torch in annotations only, so a stand-in is enough where torch is not imported yet.
    """
    spec = spec_from_file_location("tarmac_open_clip_tokenizer", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    is_stand_in = "torch" not in sys.modules
    if is_stand_in:
        sys.modules["torch"] = _NamesOnly("torch")
    try:
        spec.loader.exec_module(module)
    finally:
        if is_stand_in:
            del sys.modules["torch"]
    return module.SimpleTokenizer()


class _NamesOnly(ModuleType):
    """A module in which every name is a class without content."""

    def __getattr__(self, name: str) -> type:
        return type(name, (), {})
