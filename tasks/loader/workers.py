"""Turn a dataset of batches into an iterator that worker processes fill ahead of the training.

A DataLoader does the work. This module adds what a long training needs: workers end with the training
process however it ends, errors arrive as they were raised, a killed worker is named within seconds instead of
being waited for, and no number is drawn from the caller's random generator.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from multiprocessing import connection
from multiprocessing.queues import Queue
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch.utils.data import DataLoader, Dataset

from tasks.core.errors import DataError, TarmacError
from tasks.core.process import die_with_parent, explain_itself, keep_freed_memory
from tasks.loader import batch_memory, forkserver, worker_state
from tasks.loader.bad import Budget, PassedOver
from tasks.loader.batch_memory import BatchMemory, SentBatch, SharedFile
from tasks.loader.collate import Batch, Delivery, Packed, WorkerFailure, unpack
from tasks.loader.worker_state import WorkerStates

logger = logging.getLogger(__name__)


class Transform(Protocol):
    """Turns a sample's members by suffix into its tensors, numbers and strings by name; picklable.
    `generator_seed` is all the randomness that it may use; None asks for the plain form, without
    augmentation. A transform whose class says `reads_crops = True` may get a volume as a view of a map of the
    shard, of which it takes what it needs by `decode_volume` with a crop."""

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]: ...


class Batches(Iterator[Batch]):
    """The batches of one pass, in order. Closing it, also by `with`, ends its workers at once."""

    def __init__(
        self,
        dataset: Dataset[Delivery],
        name: str,
        sampler: Iterable[Any] | None,
        transform: Transform,
        workers: int,
        prefetch: int,
        pin_memory: bool,
        budget: Budget | None = None,
        keeper: WorkerStates | None = None,
    ) -> None:
        self.name = name
        self.passed_over: tuple[PassedOver, ...] = ()
        """The bad samples that the last batch lacks, and those of the batches before it of which no sample
        was left."""
        self.reached = (0, 0)
        """How many batches of the pass were read, those without a sample as well, and how many samples they
        lack."""
        self._budget = budget
        self._writer = keeper.keep(0) if keeper is not None and not workers else worker_state.NOBODY
        self._memory = BatchMemory(workers)
        loader: DataLoader[Delivery] = DataLoader(
            dataset,
            batch_size=None,
            sampler=sampler,
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            collate_fn=_as_it_is,
            worker_init_fn=partial(_prepare_worker, keeper, self._memory.file, self._memory.number),
            multiprocessing_context=forkserver.start_forkserver(transform.__module__) if workers else None,
            pin_memory=pin_memory,
            # Otherwise it would draw from the global generator, and a resumed run would differ.
            generator=torch.Generator(),
        )
        self._source: Any = iter(loader)
        self._processes = list(getattr(self._source, "_workers", ()))
        self.worker_pids: tuple[int, ...] = tuple(process.pid for process in self._processes)
        _open.add(self)

    def __next__(self) -> Batch:
        """Return the next batch that holds samples. Raises the TarmacError that a worker raised, TarmacError
        when a worker died, and DataError when more samples were passed over than the budget allows."""
        batch: Batch = {"key": []}
        self.passed_over = ()
        while not batch["key"]:
            batch, passed = unpack(self._next())
            self.passed_over += passed
            self.reached = self.reached[0] + 1, self.reached[1] + len(passed)
            if self._budget is not None:
                self._spend(self._budget, passed)
        return batch

    def _next(self) -> Packed:
        if self._source is None:
            raise StopIteration
        worker_state.take_up(self._writer)  # without workers it is this process's
        try:
            packed: Delivery = next(self._source)
        except BaseException as error:
            self._name_the_dead(error)
            self.close()
            raise
        if isinstance(packed, WorkerFailure):
            self.close()
            raise packed.error
        return self._memory.open(packed) if isinstance(packed, SentBatch) else packed

    def _spend(self, budget: Budget, passed: Sequence[PassedOver]) -> None:
        for one in passed:
            logger.warning("left out: %s (%s)", one.defect, one.defect.reason)
        try:
            budget.spend(one.position for one in passed)
        except DataError:
            self.close()
            raise

    def _name_the_dead(self, error: BaseException) -> None:
        """Raise the worker's loss in place of `error`, a broken pipe or socket, where that is how the loss
        shows."""
        if not isinstance(error, RuntimeError | OSError | EOFError) or not self._processes:
            return
        connection.wait([process.sentinel for process in self._processes], timeout=1.0)
        dead = [process for process in self._processes if process.exitcode]
        if dead:
            self.close()
            raise TarmacError(_describe_death(self.name, dead[0].pid, dead[0].exitcode)) from error

    def close(self) -> None:
        """End the workers and wait for them; further calls do nothing."""
        source, self._source = self._source, None
        if self._processes and source is not None:
            source._shutdown_workers()  # dropping the last reference does the same, but nobody knows when
            for process in self._processes:
                if process.is_alive():  # it is stuck and ignores the SIGTERM that torch has sent
                    process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_open: weakref.WeakSet[Batches] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End the workers of batches that nobody closed. Python would wait for them, and they ignore its SIGTERM.

    It runs before that, because multiprocessing has registered its own function earlier.
    """
    for batches in list(_open):
        batches.close()


def _describe_death(name: str, pid: int, code: int) -> str:
    if code >= 0:
        return f"a loader worker (pid {pid}) of {name} ended with exit code {code}; its log says why"
    sign = signal.Signals(-code)
    causes = {
        signal.SIGKILL: "most often memory is short: lower loader.workers or loader.prefetch",
        signal.SIGBUS: "a file in its memory was cut, or memory is short: lower loader.workers",
    }
    cause = causes.get(sign, "its log says more")
    return f"a loader worker (pid {pid}) of {name} was killed by {sign.name}; {cause}"


def _prepare_worker(keeper: WorkerStates | None, file: SharedFile, memory: int, number: int) -> None:
    die_with_parent()
    explain_itself()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Slurm sends it to all processes of a job that it ends
    keep_freed_memory()
    batch_memory.keep(file, memory, number)
    Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]
    if keeper is not None:
        keeper.keep(number)


def _end_worker(error: Exception, _: object) -> None:
    """Handle a batch that cannot be sent. Python would only print the error, and the reader of the batch
    would wait forever."""
    sys.stderr.write(f"error: a batch cannot be handed over: {type(error).__name__}: {error}\n")
    os._exit(1)


def _as_it_is(packed: Any) -> Any:
    return packed
