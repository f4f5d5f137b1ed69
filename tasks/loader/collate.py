"""Samples to one batch, in the form in which it travels from a worker to the training process.

Tensors travel through shared memory and only their handles through the workers' common pipe. Texts would fill
that pipe, and a worker killed in the middle of a long message leaves a torn one, for whose rest the reader
waits for ever. So all texts of a batch travel as the bytes of one more tensor: every message stays short
enough to be written in one piece.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from tasks.core.errors import TarmacError
from tasks.loader.bad import BadSampleError, Defect, PassedOver

Batch = dict[str, Any]
"""By name: a tensor of shape [samples, ...], or a list of strings; `key` always is the list of keys."""
Packed = dict[str, Tensor]
TEXTS = "\0texts"
PASSED_OVER = "\0passed_over"


@dataclass(frozen=True)
class Failure:
    """An error that a worker hands over whole; torch would bury its message in a traceback's text."""

    kind: type[TarmacError]
    text: str
    defect: Defect | None = None

    @classmethod
    def of(cls, error: TarmacError) -> Failure:
        return cls(type(error), str(error), error.defect if isinstance(error, BadSampleError) else None)

    @property
    def error(self) -> TarmacError:
        """The error as it was."""
        return self.kind(self.text) if self.defect is None else BadSampleError(self.text, self.defect)


def pack(samples: Sequence[Mapping[str, Any]], passed_over: Sequence[PassedOver] = ()) -> Packed:
    """Stack tensors and numbers, gather strings; all samples have the same names and shapes.

    TypeError when a value is neither tensor, number nor string.
    """
    packed: Packed = {}
    texts: dict[str, Any] = {PASSED_OVER: [asdict(one) for one in passed_over]} if passed_over else {}
    if not samples:
        texts["key"] = []
    for name, value in (default_collate([dict(sample) for sample in samples]) if samples else {}).items():
        if isinstance(value, Tensor):
            packed[name] = value
        elif all(isinstance(text, str) for text in value):
            texts[name] = list(value)
        else:
            raise TypeError(f"a transform gave as {name!r} neither tensor, number nor string: {value[0]!r}")
    return {**packed, TEXTS: torch.frombuffer(bytearray(json.dumps(texts).encode()), dtype=torch.uint8)}


def unpack(packed: Packed) -> tuple[Batch, tuple[PassedOver, ...]]:
    """The batch, and the bad samples that it does without."""
    texts = json.loads(packed[TEXTS].numpy().tobytes())
    passed_over = texts.pop(PASSED_OVER, ())
    batch = {**{name: value for name, value in packed.items() if name != TEXTS}, **texts}
    return batch, tuple(PassedOver(**{**one, "defect": Defect(**one["defect"])}) for one in passed_over)
