"""Turn samples into one batch, in the form in which it travels from a worker to the training process.

Tensors travel through shared memory, and only their place through the workers' common pipe. Texts would fill
that pipe, and a worker killed in the middle of a long message leaves a torn one, for whose rest the reader
waits forever. So all texts of a batch travel as the bytes of one more tensor, and every message stays short
enough to be written in one piece.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from tasks.core.errors import TarmacError
from tasks.loader import batch_memory
from tasks.loader.bad import BadSampleError, Defect, PassedOver
from tasks.loader.batch_memory import SentBatch, Value

Batch = dict[str, Any]
"""By name: a tensor of shape [samples, ...], or a list of strings; `key` is always the list of keys."""
Packed = dict[str, Tensor]
Collate = Callable[[Sequence[Mapping[str, Any]]], Batch]
"""Makes a batch of one or more samples as a transform returned them; picklable. A tensor may also be a list
of those of the samples, which is stacked where the batch travels and saves a copy."""
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


Delivery = Packed | SentBatch | WorkerFailure
"""What a worker gives: a batch, the place of one in shared memory, or an error instead."""


def stack(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Stack tensors and numbers, and gather strings. All samples must have the same names and shapes."""
    return {
        name: torch.stack(values) if isinstance(values[0], Tensor) else values
        for name, values in columns(samples).items()
    }


def columns(samples: Sequence[Mapping[str, Any]]) -> Batch:
    """Return what `stack` does, but a list of tensors where the samples have tensors."""

    def column(values: list[Any]) -> Any:
        return values if isinstance(values[0], Tensor) else default_collate(values)

    return {name: column([sample[name] for sample in samples]) for name in samples[0]}


def pack(
    samples: Sequence[Mapping[str, Any]], passed_over: Sequence[PassedOver] = (), collate: Collate = stack
) -> Packed | SentBatch:
    """Return the batch that `collate` makes of the samples; in a worker its tensors lie in shared memory.
    TypeError when a value is neither tensor, number, string nor list of numbers, which stay on the host."""
    texts: dict[str, Any] = {PASSED_OVER: [asdict(one) for one in passed_over]} if passed_over else {}
    gather = columns if collate is stack else collate
    values = _values(gather(samples) if samples else {"key": []}, texts)
    if batch_memory.mine is not None:
        return batch_memory.mine.place(values)
    return {
        name: value if isinstance(value, Tensor) else torch.stack(list(value))
        for name, value in values.items()
    }


def _values(batch: Batch, texts: dict[str, Any]) -> dict[str, Value]:
    """Return what the batch holds of tensors, and one more that holds its texts and the given ones."""
    found: dict[str, Value] = {}
    for name, value in batch.items():
        if isinstance(value, Tensor):
            found[name] = value
        elif value and isinstance(value[0], Tensor):
            found[name] = _alike(name, value)
        elif all(isinstance(text, str | list) for text in value):
            texts[name] = list(value)
        else:
            raise TypeError(
                f"a transform gave as {name!r} neither tensor, number, string nor list: {value[0]!r}"
            )
    return {**found, TEXTS: torch.frombuffer(bytearray(json.dumps(texts).encode()), dtype=torch.uint8)}


def _alike(name: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    kinds = sorted({f"{one.dtype} {[*one.shape]}".removeprefix("torch.") for one in tensors})
    if len(kinds) > 1:
        raise TypeError(
            f"a transform gave {name!r} in several types or shapes: {', '.join(kinds[:3])}; "
            "give one for all samples, or a collate that pads"
        )
    return tensors


def unpack(packed: Packed) -> tuple[Batch, tuple[PassedOver, ...]]:
    """The batch, and the bad samples that it lacks."""
    texts = json.loads(packed[TEXTS].numpy().tobytes())
    passed_over = texts.pop(PASSED_OVER, ())
    batch = {**{name: value for name, value in packed.items() if name != TEXTS}, **texts}
    return batch, tuple(PassedOver(**{**one, "defect": Defect(**one["defect"])}) for one in passed_over)
