"""A linear head over the embeddings of pictures, such as LAION's aesthetic predictor, from a local file."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from tasks.core.errors import UsageError, first_line

KEY = "score.aesthetic"
UNREADABLE = (OSError, RuntimeError, ValueError, LookupError, EOFError, UnpicklingError, SafetensorError)


class LinearHead:
    """Maps embeddings [samples, width] to one number each; UsageError for a file that holds no such head. No
    code that the file brings is run."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UsageError(f"{KEY}: there is no file {path}")
        try:
            safe = path.suffix == ".safetensors"
            found = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
        except UNREADABLE as error:
            raise UsageError(f"{KEY}: {path} cannot be loaded: {first_line(error)}") from None
        try:
            weight, bias = found["weight"].float(), found["bias"].float()
        except (KeyError, TypeError, AttributeError):
            raise UsageError(f"{KEY}: {path} has no weight and bias of a linear layer") from None
        if weight.ndim != 2 or weight.shape[0] != 1 or bias.numel() != 1:
            raise UsageError(f"{KEY}: {path} gives {tuple(weight.shape)} weights; one row is expected")
        self._path, self._weight, self._bias = path, weight[0].numpy(), float(bias)

    def __call__(self, embeddings: NDArray[np.float32]) -> NDArray[np.float32]:
        if len(embeddings) and embeddings.shape[1] != len(self._weight):
            raise UsageError(
                f"{KEY}: {self._path} is for embeddings of {len(self._weight)}, and the model's are "
                f"{embeddings.shape[1]} wide"
            )
        if not len(embeddings):
            return np.empty(0, np.float32)
        return np.asarray(embeddings @ self._weight + self._bias, np.float32)
