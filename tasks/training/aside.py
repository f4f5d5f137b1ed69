"""Saving beside the training: the state is copied to the host, then written and hashed by a thread.

torch, safetensors and BLAKE3 release the interpreter while they work, so a step waits for the copy alone. The
price is memory for one more state on the host. One checkpoint is on its way at a time: who saves again waits
for it, so no backlog grows on a slow disk. What is killed on its way leaves the checkpoint before it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from torch import nn

from tasks.core.errors import TarmacError
from tasks.runs.folder import RunFolder
from tasks.training import checkpoints

logger = logging.getLogger(__name__)


class CheckpointSaver:
    """Writes the checkpoints of a run. Leaving the block waits for what is on its way, however it is left."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._under_way: list[Future[None]] = []

    def save(self, step: int, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Copy the state after `step` steps, and have it written; waits for the checkpoint before.

        TarmacError when that one could not be written, or memory runs out.
        """
        self.wait()
        content = checkpoints.copied(self._run, step, model, state)
        self._under_way.append(self._thread.submit(checkpoints.write_copied, self._run, step, content))

    def add_val_loss(self, step: int, val_loss: float) -> None:
        """Have the validation loss written into the checkpoint of `step` once that is there."""
        self._under_way.append(self._thread.submit(checkpoints.add_val_loss, self._run, step, val_loss))

    def check(self) -> None:
        """The error of a checkpoint that could not be written, as soon as it is known; waits for none."""
        while self._under_way and self._under_way[0].done():
            self._under_way.pop(0).result()

    def wait(self) -> None:
        """Until nothing is on its way; the error of what could not be written."""
        while self._under_way:
            self._under_way.pop(0).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.wait()
        except TarmacError as failed:
            if error is None:
                raise
            logger.error("%s", failed)  # beside the error that ends the training
        finally:
            self._thread.shutdown()
