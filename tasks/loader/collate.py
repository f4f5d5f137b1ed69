"""Turn samples into one batch, in the form in which it travels from a worker to the training process.

Tensors travel through shared memory, and only their handles through the workers' common pipe. Texts would
fill that pipe, and a worker killed in the middle of a long message leaves a torn one, for whose rest the
reader waits forever. So all texts of a batch travel as the bytes of one more tensor, and every message stays
short enough to be written in one piece. All tensors are placed in shared memory before a batch is handed
over: when that memory is full, the thread that sends batches would otherwise lose the batch, and its reader
would wait for it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from tasks.core.errors import TarmacError
from tasks.loader.bad import BadSampleError, Defect, PassedOver

Batch = dict[str, Any]
"""By name: a tensor of shape [samples, ...], or a list of strings; `key` is always the list of keys."""
Packed = dict[str, Tensor]
Collate = Callable[[Sequence[Mapping[str, Any]]], Batch]
"""Makes a batch of one or more samples as a transform returned them; picklable."""
SHARED = Path("/dev/shm")
TEXTS = "\0texts"
PASSED_OVER = "\0passed_over"


@dataclass(frozen=True)
class WorkerFailure:
    """An error that a worker hands over as an object; torch would bury its message in a traceback's text."""

    kind: type[TarmacError]
    text: str
    defect: Defect | None = None

    @classmethod
    def of(cls, error: TarmacError) -> WorkerFailure:
        return cls(type(error), str(error), error.defect if isinstance(error, BadSampleError) else None)

    @property
    def error(self) -> TarmacError:
        """Return the error as it was raised."""
        return self.kind(self.text) if self.defect is None else BadSampleError(self.text, self.defect)


def stack(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Stack tensors and numbers, and gather strings. All samples must have the same names and shapes."""
    batch: Batch = default_collate([dict(sample) for sample in samples])
    return batch


def pack(
    samples: Sequence[Mapping[str, Any]], passed_over: Sequence[PassedOver] = (), collate: Collate = stack
) -> Packed:
    """Return the batch that `collate` makes of the samples; in a worker its tensors lie in shared memory.
    TypeError when a value is neither tensor, number, string nor list of numbers, which stay on the host;
    TarmacError when shared memory is full."""
    texts: dict[str, Any] = {PASSED_OVER: [asdict(one) for one in passed_over]} if passed_over else {}
    try:
        packed = _tensors(collate(samples) if samples else {"key": []}, texts)
        if get_worker_info() is not None:
            for tensor in packed.values():
                tensor.untyped_storage().share_memory_()
    except RuntimeError as error:
        if f"({errno.ENOSPC})" not in str(error):
            raise
        raise _without_room(samples) from error
    return packed


def _tensors(batch: Batch, texts: dict[str, Any]) -> Packed:
    """Return the batch's tensors, and one more that holds its texts and the given ones."""
    packed: Packed = {}
    for name, value in batch.items():
        if isinstance(value, Tensor):
            packed[name] = value
        elif all(isinstance(text, str | list) for text in value):
            texts[name] = list(value)
        else:
            raise TypeError(
                f"a transform gave as {name!r} neither tensor, number, string nor list: {value[0]!r}"
            )
    return {**packed, TEXTS: torch.frombuffer(bytearray(json.dumps(texts).encode()), dtype=torch.uint8)}


def _without_room(samples: Sequence[Mapping[str, Any]]) -> TarmacError:
    """Return the error of a worker whose batch finds no room in shared memory. It names the file system's
    size and not what is free, because another worker may just have given up its own batch."""
    values = (value for sample in samples for value in sample.values() if isinstance(value, Tensor))
    needed = sum(value.nbytes for value in values)
    disk = os.statvfs(SHARED)
    whole = disk.f_blocks * disk.f_frsize
    return TarmacError(
        f"the loader's workers are out of shared memory: a batch takes {needed / 1e6:,.1f} MB, and {SHARED} "
        f"has {whole / 1e6:,.1f} MB for all of them; enlarge it, or lower loader.workers, loader.prefetch or "
        "train.micro_batch"
    )


def unpack(packed: Packed) -> tuple[Batch, tuple[PassedOver, ...]]:
    """The batch, and the bad samples that it lacks."""
    texts = json.loads(packed[TEXTS].numpy().tobytes())
    passed_over = texts.pop(PASSED_OVER, ())
    batch = {**{name: value for name, value in packed.items() if name != TEXTS}, **texts}
    return batch, tuple(PassedOver(**{**one, "defect": Defect(**one["defect"])}) for one in passed_over)
