"""Leaves out torch's compiler, which takes seconds to import and which a training without it never runs.

torch's optimizers import `torch._dynamo` at their first call, torchvision and transformers at their own
import: a third of the time from a process's start to its first step, and 100 MB. Until it is really used, a
stand-in takes its place.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

COMPILER = "torch._dynamo"
MARKS = ("disable", "assume_constant_result", "allow_in_graph")
"""Decorators that tell a compiler how to take a function, and change nothing without one."""
ASKED = (
    ("utils", "is_compile_supported"),
    ("_trace_wrapped_higher_order_op", "TransformGetItemToIndex"),
)
"""What torchvision and transformers import from the compiler's modules by name, and call if ever."""


def put_off_compiler() -> None:
    """Have this process import torch's compiler only once it is used.

    For a process that compiles nothing: functions that torch marks for the compiler before stay unmarked.
    """
    import torch  # noqa: F401  # which has to be there before a part of it

    if COMPILER in sys.modules:
        return
    spec = importlib.util.find_spec(COMPILER)
    assert spec is not None and spec.origin is not None
    unmarked = dict.fromkeys(MARKS, _unmarked)
    sys.modules[COMPILER] = _PutOff(COMPILER, spec.origin, {**unmarked, "graph_break": lambda: None})
    for part, name in ASKED:
        module, file = f"{COMPILER}.{part}", Path(spec.origin).with_name(f"{part}.py")
        sys.modules[module] = _PutOff(module, str(file), {name: _called_there(module, name)})


class _PutOff(ModuleType):
    """Stands for a module until it is asked for what it does not know."""

    def __init__(self, name: str, file: str, known: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__file__ = file  # for which whoever looks for the module of a function asks every module
        vars(self).update(known)

    def __getattr__(self, name: str) -> Any:
        if name == "__path__" and self.__name__ != COMPILER:  # which every import asks for, of a package only
            raise AttributeError(name)
        return getattr(_imported(self.__name__), name)


def _imported(name: str) -> ModuleType:
    """Import the compiler's module itself, and forget all stand-ins."""
    for stand_in in [module for module in sys.modules.values() if isinstance(module, _PutOff)]:
        del sys.modules[stand_in.__name__]
    return importlib.import_module(name)


def _called_there(module: str, name: str) -> Callable[..., Any]:
    return lambda *args, **kwargs: getattr(_imported(module), name)(*args, **kwargs)


def _unmarked(function: Any = None, *_: Any, **__: Any) -> Any:
    """Give back the function, or a decorator that does."""
    return (lambda decorated: decorated) if function is None else function
