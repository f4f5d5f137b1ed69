"""open_clip without wandb, and with tokenizers that travel to loader workers at no cost.

A module of timm imports wandb wherever it is installed. A training process must not load a tracker: the
import alone takes a second, reads the user's settings and hooks into the interpreter. Here timm is imported
as if wandb were not installed.

open_clip's own tokenizer holds tables of 2 MB, which each worker would parse again before its first sample,
although importing open_clip has made them there already.
"""

from __future__ import annotations

import copyreg
import importlib
import sys
from typing import Any

TRACKER = "wandb"


def _import_open_clip() -> Any:
    modules: dict[str, Any] = sys.modules
    if TRACKER in modules:
        return importlib.import_module("open_clip")
    modules[TRACKER] = None  # importing a module that is None raises ImportError
    try:
        return importlib.import_module("open_clip")
    finally:
        del modules[TRACKER]


open_clip = _import_open_clip()


def _pickled(tokenizer: Any) -> tuple[Any, ...]:
    """Pickle a tokenizer as its differences from the one that open_clip makes when it is imported."""
    usual, own = vars(open_clip.tokenizer._tokenizer), vars(tokenizer)
    for name in own.keys() & usual.keys() - {"cache"}:  # the cache grows, and its tables may differ
        if own[name] is not usual[name] and own[name] == usual[name]:
            own[name] = usual[name]  # tables are compared once
    return _unpickled, ({name: value for name, value in own.items() if value is not usual.get(name)},)


def _unpickled(changes: dict[str, Any]) -> Any:
    tokenizer = object.__new__(open_clip.tokenizer.SimpleTokenizer)
    vars(tokenizer).update({**vars(open_clip.tokenizer._tokenizer), **changes})
    return tokenizer


copyreg.pickle(open_clip.tokenizer.SimpleTokenizer, _pickled)
