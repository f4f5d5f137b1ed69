"""Reads a table of weights that any trainer has saved, without running what a pickle could hold."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from tasks.core.errors import DataError, TarmacError, first_line

WRAPPERS = re.compile(r"^(module\.)?(_orig_mod\.)?")
"""The prefixes that DDP and torch.compile put before the names of a model's weights."""
POSITIONS = re.compile(r"(?:^|\.)position_ids$")
"""A buffer of earlier transformers that counts from zero, which its models do not save any more."""
UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError, SafetensorError)


class UnreadableWeights(TarmacError):
    """A file of weights is not whole yet, or no checkpoint."""


def weights_of(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a file of torch or safetensors, by the names that the model itself gives.

    UnreadableWeights where there is none.
    """
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UNREADABLE as error:
        raise UnreadableWeights(f"{path}: {first_line(error)}") from error
    weights = found.get("state_dict", found) if isinstance(found, dict) else None
    if not weights or not all(isinstance(value, Tensor) for value in weights.values()):
        raise UnreadableWeights(f"{path}: holds no state dict")
    return {WRAPPERS.sub("", name): value.contiguous() for name, value in weights.items()}


def load_strictly(model: nn.Module, files: Sequence[Path], where: str) -> None:
    """Load the weights in the files, which have to be all of the model's and no others.

    DataError that begins with `where` and names the first weight that does not fit; UnreadableWeights.
    """
    given: dict[str, Tensor] = {}
    for file in files:
        given |= weights_of(file)
    mine = model.state_dict()
    given = {name: value for name, value in given.items() if name in mine or not POSITIONS.search(name)}
    if problem := first_misfit(mine, given):
        raise DataError(f"{where} is of another model than train.model: {problem}")
    model.load_state_dict(given, strict=False)


def first_misfit(mine: dict[str, Tensor], given: dict[str, Tensor]) -> str:
    """Return the first weight that does not fit: of another shape, missing, or unknown; empty where all fit.

    Weights that share their memory are stored once, under either name.
    """
    for name, value in mine.items():
        if name in given and given[name].shape != value.shape:
            return f"{name} is {list(given[name].shape)} there and {list(value.shape)} in the model"
    stored = {(mine[name].data_ptr(), mine[name].shape) for name in given.keys() & mine.keys()}
    missing = [name for name, value in mine.items() if (value.data_ptr(), value.shape) not in stored]
    unknown = [name for name in given if name not in mine]
    if missing:
        instead = f" (it has {unknown[0]})" if unknown else ""
        return f"{missing[0]} is not there{instead}"
    return f"it has {unknown[0]}, which the model has not" if unknown else ""
