"""How many tokens a caption has, for pages that show it: CLIP's own tokenizer where it is installed."""

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
    """A function from a caption to its tokens, start and end included; None where there is no open_clip."""
    package = find_spec("open_clip")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).with_name("tokenizer.py")
    return lambda text: len(_tokenizer(path).encode(text)) + ENDS


@cache
def _tokenizer(path: Path) -> Any:
    """open_clip's SimpleTokenizer, from its own file.

    The package would bring timm and torch, which take seconds to import; splitting a text needs neither. Its
    file names torch in annotations only, so a stand-in does where torch is not imported yet.
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
