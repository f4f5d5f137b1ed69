"""A map on an existing Dask cluster, of which only the address is known.

Dask moves values as pickles between processes that trust each other, and repeats the work of a lost worker
itself (`distributed.scheduler.allowed-failures`, 3). Each worker checks before its first item that it runs
exactly this code, with the same versions of the packages that affect a shard's bytes, and that it sees the
same folder: Dask's own version check knows neither the code nor workers that join later. An item travels as
bytes that only the task itself unpickles, because a Dask worker that cannot import what it receives ends, and
other users' work on it is lost; so the scheduler does not need Tarmac either. Results are taken from a queue
and not from `as_completed`, which blocks without a limit and would hide that the scheduler or all workers are
gone.
"""

from __future__ import annotations

import functools
import pickle
import platform
import queue
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from distributed import CancelledError, Client, Future, KilledWorker

from tasks.core.errors import TarmacError, UsageError, first_line
from tasks.core.files import code_digest

Item = TypeVar("Item")
Result = TypeVar("Result")
CONNECT_S = 10
LOST_S = 60.0
"""How long a scheduler may be unreachable before the map fails."""
LOOK_S = 2.0
AHEAD = 2
"""Items in flight per thread of the cluster."""
FEWEST = 8
"""Items in flight even without workers, so that a cluster that scales with its queue starts some."""
STORED_BY = ("blosc2", "numpy", "pillow", "pyarrow")
"""Packages whose versions can change the bytes of a shard."""

CODE = code_digest()
"""Computed at import, because a worker that has run for weeks has old code in memory."""


@dataclass(frozen=True)
class _Expected:
    """What a worker must have: access to the file `proof`, and these versions of code and packages."""

    proof: Path
    versions: tuple[tuple[str, str], ...]


def map_on_dask(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    address: str,
    folder: Path,
    say: Callable[[str], None],
) -> Generator[Result, None, None]:
    """Yield `function(item)` for every item, in order of arrival; see `tasks.core.engines.map_groups`."""
    expected = _Expected(folder / f".seen-{secrets.token_hex(4)}", tuple(_versions().items()))
    folder.mkdir(parents=True, exist_ok=True)
    expected.proof.touch()
    try:
        with _connected(address) as client:
            packed = (pickle.dumps(_PackedItem(function, expected, item)) for item in items)
            yield from _InFlight(client, address, say).results(packed)
    finally:
        expected.proof.unlink(missing_ok=True)


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, ImportError) as error:
        raise TarmacError(
            f"engine.build.address: no Dask scheduler answers at {address} within {CONNECT_S} s "
            f"({first_line(error)})"
        ) from None
    try:
        yield client
    finally:
        client.close(timeout=CONNECT_S)


class _InFlight:
    """The items in flight: twice as many as the cluster has threads."""

    def __init__(self, client: Client, address: str, say: Callable[[str], None]) -> None:
        self._client = client
        self._address = address
        self._say = say
        self._ended: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._size = FEWEST
        self._answered = time.monotonic()
        self._looked = -LOOK_S

    def results(self, packed: Iterator[bytes]) -> Iterator[Any]:
        running: set[Future[Any]] = set()
        name = f"tarmac-{secrets.token_hex(4)}"
        numbered = enumerate(packed)
        try:
            while True:
                self._look()
                for number, item in islice(numbered, max(self._size - len(running), 0)):
                    future = self._client.submit(pickle.loads, item, key=f"{name}-{number}")
                    running.add(future)
                    future.add_done_callback(self._ended.put)
                if not running:
                    return
                try:
                    future = self._ended.get(timeout=LOOK_S)
                except queue.Empty:
                    continue
                running.discard(future)
                yield self._result(future)
        finally:
            for future in running:
                future.cancel()

    def _look(self) -> None:
        """Every LOOK_S seconds, adapt the window to the cluster; raises TarmacError if its scheduler is
        lost."""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        try:
            threads = self._threads()
        except OSError:  # timeouts included
            threads = None
        if threads is None:
            if now - self._answered > LOST_S or self._client.status == "closed":
                raise self._gone()
            return
        self._answered = now
        self._size = max(AHEAD * threads, FEWEST)
        if threads == 0:
            self._say(f"waiting for workers of the Dask cluster at {self._address}")

    def _threads(self) -> int | None:
        """Return the number of threads of all workers; None while the client is not connected."""
        if self._client.status != "running" or self._client.scheduler is None:
            return None
        ask = self._client.scheduler.ncores
        found: dict[str, int] = self._client.sync(ask, callback_timeout=CONNECT_S)
        return sum(found.values())

    def _gone(self) -> TarmacError:
        return TarmacError(
            f"the Dask scheduler at {self._address} is gone; start again once it is back; "
            "finished work is kept"
        )

    def _result(self, future: Future[Any]) -> Any:
        try:
            return future.result(timeout=LOST_S)
        except TarmacError as error:
            raise error from None
        except KilledWorker as error:
            raise TarmacError(
                f"Dask workers died over the same work, the last at {error.last_worker.address}; "
                "is memory short? See their logs; give them more memory, or fewer threads"
            ) from None
        except (CancelledError, TimeoutError):
            raise self._gone() from None
        except ModuleNotFoundError as error:
            raise UsageError(
                f"engine.build: a worker of the Dask cluster at {self._address} has no module {error.name}; "
                "install Tarmac for the workers as on this machine"
            ) from None


@dataclass(frozen=True)
class _PackedItem:
    """A function and its item; unpickling this in a worker runs the function."""

    function: Callable[[Any], Any]
    expected: _Expected
    item: Any

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _do, (self.function, self.expected, self.item)


def _do(function: Callable[[Item], Result], expected: _Expected, item: Item) -> Result:
    """Process one item in a worker."""
    _check(expected)
    return function(item)


@functools.lru_cache(maxsize=8)
def _check(expected: _Expected) -> None:
    """Raise UsageError if this worker does not fit `expected`; checked once per worker and map."""
    for name, wanted in expected.versions:
        found = _versions().get(name, "none")
        if found != wanted:
            raise UsageError(
                f"engine.build: the Dask worker on {platform.node()} has {name} {found}, the build {wanted}; "
                "give both the same versions and start the worker again"
            )
    if not expected.proof.exists():
        raise UsageError(
            f"engine.build: the Dask workers do not see {expected.proof.parent} (looked for on "
            f"{platform.node()}); dataset.output must be on a file system that they share"
        )


@functools.cache
def _versions() -> dict[str, str]:
    found = {"Tarmac's code": CODE, "Python": ".".join(platform.python_version_tuple()[:2])}
    for package in STORED_BY:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found
