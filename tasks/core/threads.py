"""A map in threads, for work that releases the interpreter's lock: reading, hashing, waiting for a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
LEAVES_S = 1.0
"""How long a closed map waits for its threads: with a local disk they end soon, with a dead store never."""


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, *, in_order: bool = True
) -> Generator[Result, None, None]:
    """Yield `function(item)` for every item, in their order, or each as soon as it is done.

    At most twice as many items as threads are taken from `items` ahead of the results. An error of `function`
    is raised here. Closing this generator, or Ctrl-C, waits at most LEAVES_S: running work then continues
    until it or the process ends, so `function` should have no side effects.
    """
    asked: SimpleQueue[tuple[Future[Result], Item] | None] = SimpleQueue()
    workers = [threading.Thread(target=_serve, args=(function, asked), daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    running: dict[Future[Result], None] = {}
    done: SimpleQueue[Future[Result]] = SimpleQueue()

    def take() -> Result:
        future = next(iter(running)) if in_order else done.get()
        del running[future]
        return future.result()

    try:
        for item in items:
            future: Future[Result] = Future()
            if not in_order:
                future.add_done_callback(done.put)
            running[future] = None
            asked.put((future, item))
            if len(running) == 2 * threads:
                yield take()
        while running:
            yield take()
    finally:
        for future in running:
            future.cancel()
        for _ in workers:
            asked.put(None)
        ends = time.monotonic() + LEAVES_S
        for worker in workers:  # a thread inside C++ when the interpreter ends would crash it
            worker.join(max(0.0, ends - time.monotonic()))


def _serve(
    function: Callable[[Item], Result], asked: SimpleQueue[tuple[Future[Result], Item] | None]
) -> None:
    while (work := asked.get()) is not None:
        future, item = work
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(item))
            except BaseException as error:  # noqa: BLE001 - the waiting caller raises it
                future.set_exception(error)
