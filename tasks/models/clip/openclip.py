"""open_clip without wandb, without libraries that its models need only at times, and with tokenizers that
travel to loader workers at no cost.

A module of timm imports wandb wherever it is installed. A training process must not load a tracker: the
import alone takes a second, reads the user's settings and hooks into the interpreter. Here timm is imported
as if wandb were not installed.

open_clip imports transformers and timm for text and vision towers from there, which takes as long as torch
does. Here it finds neither until a model asks for such a tower.

open_clip's own tokenizer holds tables of 2 MB, which each worker would parse again before its first sample,
although importing open_clip has made them there already.
"""

from __future__ import annotations

import copyreg
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TRACKER = "wandb"
TOWERS = (("hf_model", "transformers", "HFTextEncoder"), ("timm_model", "timm", "TimmModel"))
"""A module of open_clip, the library whose models it adapts, and the class that does."""


@contextmanager
def _hidden(*libraries: str) -> Iterator[None]:
    """Have imports fail for the libraries, as if they were not installed, but for those imported before."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in libraries if name not in modules]
    modules.update(dict.fromkeys(hidden))  # importing a module that is None raises ImportError
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


def _late(module: Any, name: str) -> Callable[..., Any]:
    """Return a function in place of the class of this name, which imports the library and builds a tower."""

    def build(*args: Any, **kwargs: Any) -> Any:
        with _hidden(TRACKER):
            tower = getattr(importlib.reload(module), name)
        setattr(open_clip.model, name, tower)
        return tower(*args, **kwargs)

    return build


with _hidden(TRACKER, *(library for _, library, _ in TOWERS)):
    open_clip: Any = importlib.import_module("open_clip")
for _module, _library, _name in TOWERS:
    if getattr(getattr(open_clip, _module), _library) is None:
        setattr(open_clip.model, _name, _late(getattr(open_clip, _module), _name))


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
