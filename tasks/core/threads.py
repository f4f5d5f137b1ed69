"""Threads for work that releases the interpreter's lock: reading, hashing, waiting for a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
LEAVES_S = 1.0
"""How long a closed map waits for its threads: those that read a local disk end at once; one that waits for a
dead server may never end."""


class Threads:
    """At most so many threads, which start as they are needed and which nobody waits for when the process
    ends."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None] = (
            SimpleQueue()
        )
        self._started: list[threading.Thread] = []

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        future: Future[Result] = Future()
        self._waiting.put((future, function, arguments))
        if len(self._started) < self._most:
            thread = threading.Thread(target=self._work, daemon=True)
            self._started.append(thread)
            thread.start()
        return future

    def close(self, wait_s: float) -> None:
        """End the threads, and wait for them so long. Work that runs then continues until it or the process
        ends."""
        for _ in self._started:
            self._waiting.put(None)
        ends = time.monotonic() + wait_s
        for thread in self._started:  # one inside C++ when the interpreter ends would crash it
            thread.join(max(0.0, ends - time.monotonic()))

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            future, function, arguments = work
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*arguments))
                except BaseException as error:  # noqa: BLE001 - whoever waits for the result raises it
                    future.set_exception(error)
            del work, future, function, arguments


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, *, in_order: bool = True
) -> Generator[Result, None, None]:
    """Yield `function(item)` for every item, in their order, or each as soon as it is done.

    At most twice as many items as threads are taken from `items` ahead of the results. An error of `function`
    is raised here. Closing this generator, or Ctrl-C, waits at most LEAVES_S: running work then continues
    until it or the process ends, so `function` should have no side effects.
    """
    pool = Threads(threads)
    running: dict[Future[Result], None] = {}
    done: SimpleQueue[Future[Result]] = SimpleQueue()

    def take() -> Result:
        future = next(iter(running)) if in_order else done.get()
        del running[future]
        return future.result()

    try:
        for item in items:
            future = pool.submit(function, item)
            running[future] = None
            if not in_order:
                future.add_done_callback(done.put)
            if len(running) == 2 * threads:
                yield take()
        while running:
            yield take()
    finally:
        for future in running:
            future.cancel()
        pool.close(LEAVES_S)
