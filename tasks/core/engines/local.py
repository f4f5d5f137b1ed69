"""Maps on the processes of this machine.

The pool starts its processes by forkserver, never by a fork of the threaded caller, and does not import the
caller's main module: a script that builds outside `if __name__ == "__main__"` would build again in each of
them. A killed worker does not fail the map: its item, which is idempotent, is done again by a new pool, up to
TRIES times.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from types import ModuleType
from typing import Any, Generic, TypeVar

from tasks.core.errors import TarmacError
from tasks.core.process import as_for_a_child, die_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")
TRIES = 3
_BLAS = "OPENBLAS_NUM_THREADS"


class _WorkerProcess(ForkServerProcess):
    """A process that does not import the caller's main module."""

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        own = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            return ForkServerProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = own


class _Context(ForkServerContext):
    Process = _WorkerProcess


@dataclass
class _WorkItem(Generic[Item]):
    """An item, and how many workers were lost over it."""

    item: Item
    losses: int = 0


def map_here(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[Result, None, None]:
    """Yield `function(item)` for every item, in order of completion.

    `function` and items are picklable; at most twice as many items as workers are taken from `items` ahead of
    the results. An error of `function` is raised here, after running work has ended. The workers end when
    this process does, even by SIGKILL. Raises TarmacError if an item has lost its worker TRIES times.
    """
    context = _Context()
    context.set_forkserver_preload([module_of(function)])
    with as_for_a_child():
        forkserver.ensure_running()
    fresh = (_WorkItem(item) for item in items)
    again: deque[_WorkItem[Item]] = deque()
    while True:
        running: dict[Future[Result], _WorkItem[Item]] = {}
        with ProcessPoolExecutor(workers, context, initializer=die_with_parent) as pool:
            try:
                yield from _drain(pool, function, again, fresh, running, 2 * workers)
                return
            except BrokenProcessPool:
                again.extend(_lost(running.values()))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def warm_up(module: str) -> None:
    """Start the server process that workers are forked from; it imports `module` in the background.

    OpenBLAS gets one thread per worker unless the environment sets another number: the workers already share
    the cores, and its threads spin before they sleep.
    """
    _Context().set_forkserver_preload([module])
    is_set = _BLAS in os.environ
    os.environ.setdefault(_BLAS, "1")
    try:
        with as_for_a_child():
            forkserver.ensure_running()
    finally:
        if not is_set:
            del os.environ[_BLAS]


def module_of(function: Callable[..., object]) -> str:
    """Return the module to preload for calls of a function, or of a `functools.partial` of one."""
    while isinstance(function, functools.partial):
        function = function.func
    return function.__module__


def _drain(
    pool: ProcessPoolExecutor,
    function: Callable[[Item], Result],
    again: deque[_WorkItem[Item]],
    fresh: Iterator[_WorkItem[Item]],
    running: dict[Future[Result], _WorkItem[Item]],
    ahead: int,
) -> Iterator[Result]:
    """Keep `ahead` items in the pool: enough to keep it busy, and few enough to lose little in a failure."""
    while True:
        while len(running) < ahead:
            work = again.popleft() if again else next(fresh, None)
            if work is None:
                break
            try:
                future = pool.submit(function, work.item)
            except BrokenProcessPool:
                again.appendleft(work)
                raise
            running[future] = work
        if not running:
            return
        done = wait(running, return_when=FIRST_COMPLETED).done
        for future in sorted(done, key=_is_broken):
            result = future.result()
            del running[future]
            yield result


def _is_broken(future: Future[Result]) -> bool:
    """Sort key that puts lost workers last, so that finished results are yielded first."""
    return isinstance(future.exception(), BrokenProcessPool)


def _lost(in_hand: Iterable[_WorkItem[Item]]) -> Iterator[_WorkItem[Item]]:
    for work in in_hand:
        work.losses += 1
        if work.losses >= TRIES:
            raise TarmacError(
                f"a worker process was killed {TRIES} times over the same work; is memory short? "
                "Set engine.build.workers to a smaller number"
            )
        yield work
