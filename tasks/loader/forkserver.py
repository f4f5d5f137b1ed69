"""The process from which loader workers are forked: started early, its heavy imports done once.

Forking the training process itself would deadlock sooner or later, since it has threads; a fresh interpreter
a worker would import torch each time. The forkserver imports once, and each worker is then there in a moment.
This module is free of torch, so that `start` can be called before the caller's own imports and run beside
them.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

PRELOAD = ("tasks.loader.batches",)


def start(*modules: str) -> ForkServerContext:
    """The context to start workers from, its forkserver running and importing `modules` in the background.

    Python has one forkserver a process: once it runs, further modules are imported by each worker instead.
    A module that cannot be imported there is left to the worker, which reports it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *modules])
    forkserver.ensure_running()
    return context
