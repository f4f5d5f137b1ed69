"""How many tokens a caption has, for pages that show it: CLIP's own tokenizer where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

ENDS = 2
"""The start and end tokens, which count towards the context."""


def caption_counter() -> Callable[[str], int] | None:
    """A function from a caption to its tokens, start and end included; None where there is no open_clip.

    The tokenizer is loaded (some seconds, for it brings torch) when the first caption comes.
    """
    if find_spec("open_clip") is None:
        return None
    return lambda text: len(_tokenizer().encode(text)) + ENDS


@cache
def _tokenizer() -> Any:
    from open_clip.tokenizer import SimpleTokenizer

    return SimpleTokenizer()
