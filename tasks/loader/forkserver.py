"""The process from which loader workers are forked: its heavy imports are done once, and not by each worker.

Forking the training process itself, with its threads and its GPU, would deadlock sooner or later. When it
starts it has neither: a process of Tarmac's own calls `fork` before all else, and the forkserver shares the
imports with it, which cost hundreds of megabytes and seconds of a core. In any other process
`start_forkserver` runs a fresh interpreter. This module is free of torch, so that a process can call it
first.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import sys
from collections.abc import Collection, Sequence
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from pathlib import Path

from tasks.core.process import as_for_a_child

PRELOAD = ("tasks.loader.batches",)
NAME = "forkserver"
"""The kernel's name for a forked forkserver; its command line is the training's."""
OPEN = Path("/proc/self/fd")
logger = logging.getLogger(__name__)


def start_forkserver(*modules: str) -> ForkServerContext:
    """Return the context from which to start workers; its forkserver runs and imports `modules` in the
    background. Python has one forkserver per process: once it runs, further modules are imported by each
    worker instead. A module that cannot be imported there is left to the worker, which reports it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *modules])
    with as_for_a_child():
        forkserver.ensure_running()
    return context


def fork(*modules: str) -> None:
    """Import `modules` here and fork the forkserver off this process; outside Linux, do as `start_forkserver`
    does.

    This is for the first moments of a process: a fork has none of the threads of this one but all of their
    locks, so every other thread must be idle, and no GPU may be in use. A module that cannot be imported is
    left to the code that needs it. A forkserver that runs already stays.
    """
    if sys.platform != "linux":
        start_forkserver(*modules)
        return
    for module in (*PRELOAD, *modules):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    multiprocessing.get_context("forkserver").set_forkserver_preload([])
    resource_tracker.ensure_running()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # a collection would write to every object, and no page that holds one would stay shared
    atexit.register(_end)
    fresh, util.spawnv_passfds = util.spawnv_passfds, _forked  # type: ignore[assignment]
    try:
        forkserver.ensure_running()
    finally:
        util.spawnv_passfds = fresh


def _end() -> None:
    """End the forkserver before this process destroys its objects, which copies each shared page."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    gc.unfreeze()


def _forked(_: str, command: Sequence[str], kept: Collection[int]) -> int:
    """Replace `spawnv_passfds`: return the pid of a fork of this process, which runs what `command` would
    have a fresh interpreter run. Only the standard streams and the files in `kept` stay open."""
    pid = os.fork()
    if pid:
        return pid
    try:
        Path("/proc/self/comm").write_text(NAME, encoding="ascii")
        for descriptor in {int(name) for name in os.listdir(OPEN)} - {0, 1, 2, *kept}:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        exec(command[-1], {})
    except Exception:
        logger.exception("the loader's forkserver has failed")
    finally:
        os._exit(0)
