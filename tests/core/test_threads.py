"""The map in threads: everything once, errors raised, few items taken ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.core.errors import DataError
from tasks.core.threads import map_in_threads
from tests.core.engines.functions import Job, refuse


def test_threads_take_few_items_ahead_and_keep_their_order() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    running = map_in_threads(lambda number: number * number, numbers(), 3)
    for done in range(40):
        assert next(running) == done * done
        assert len(taken) <= done + 2 * 3
    running.close()
    assert list(map_in_threads(str, range(5), 3)) == list("01234")
    with pytest.raises(DataError, match="3 is wrong"):
        list(map_in_threads(refuse, [Job(3, Path())], 2))


def test_threads_that_keep_no_order_wait_for_no_slow_item() -> None:
    """The first item ends once all others have been yielded, which are many more than are taken ahead."""
    others_are_done = threading.Event()

    def one(number: int) -> int:
        assert number or others_are_done.wait(30)
        return number

    running = map_in_threads(one, range(50), 2, in_order=False)
    assert {next(running) for _ in range(49)} == set(range(1, 50))
    others_are_done.set()
    assert list(running) == [0]
    with pytest.raises(DataError, match="3 is wrong"):
        list(map_in_threads(refuse, [Job(3, Path())], 2, in_order=False))
