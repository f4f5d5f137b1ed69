"""Maps an idempotent function over groups of work on this machine.

The pool starts its processes by forkserver, never by fork of a threaded process. A worker that is killed
does not fail the map: its item, which is idempotent, is done again by a new pool, up to TRIES times.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tasks.core.errors import TarmacError
from tasks.core.process import die_with_parent

Item = TypeVar("Item")
Result = TypeVar("Result")
TRIES = 3


def map_groups(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int, preload: Sequence[str] = ()
) -> Generator[Result, None, None]:
    """Yield `function(item)` for every item, in order of completion.

    `function` and items are picklable; `preload` names modules that the forkserver imports once. An error of
    `function` is raised here, after the work in hand has ended. The workers end when this process does, even
    by SIGKILL. TarmacError when an item has lost its worker TRIES times.
    """
    if not items:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__, *preload])
    left = dict.fromkeys(range(len(items)), 0)
    while left:
        running: dict[Future[Result], int] = {}
        with ProcessPoolExecutor(min(workers, len(left)), context, initializer=die_with_parent) as pool:
            try:
                yield from _drain(pool, function, items, left, running)
            except BrokenProcessPool:
                _count_loss(left, running.values())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _drain(
    pool: ProcessPoolExecutor,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    left: dict[int, int],
    running: dict[Future[Result], int],
) -> Iterator[Result]:
    """Keep the pool busy with twice its size, so that a failed map has little work in flight."""
    waiting = iter(list(left))
    ahead = 2 * pool._max_workers  # type: ignore[attr-defined]
    while True:
        for number in waiting:
            running[pool.submit(function, items[number])] = number
            if len(running) >= ahead:
                break
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            result = future.result()
            del left[running.pop(future)]
            yield result


def _count_loss(left: dict[int, int], in_hand: Iterable[int]) -> None:
    for number in in_hand:
        left[number] += 1
        if left[number] >= TRIES:
            raise TarmacError(
                f"a worker process was killed {TRIES} times over the same work; is memory short? "
                "Give engine.build.workers a smaller number"
            )
