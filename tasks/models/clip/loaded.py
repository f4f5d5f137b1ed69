"""A CLIP model with its weights that embeds pictures and texts: a teacher, or a judge of captions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from tasks.core.errors import UsageError
from tasks.core.schema.score import ClipWeights
from tasks.models.clip.clip import ClipRecipe
from tasks.models.clip.clip_options import ClipOptions

Rows = NDArray[np.float32]
"""[samples, width], rows of length 1."""


def options_of(given: ClipWeights, key: str) -> ClipOptions:
    """Return the options of a model; UsageError for one that open_clip does not know."""
    try:
        return ClipOptions(name=given.name, pretrained=given.pretrained)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]["ctx"]["error"]
        raise UsageError(f"{key}: {given.name}: {wrong}") from None


class LoadedClip:
    """A model in eval mode, on a GPU where there is one; `key` is the config's block that names it.

    UsageError for a model that open_clip does not know or a missing file; DataError for weights that do not
    fit.
    """

    def __init__(self, given: ClipWeights, key: str) -> None:
        self.recipe = ClipRecipe(options_of(given, key), key)
        model = self.recipe.build_model()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._task = self.recipe.task(model.to(self.device).eval())

    @property
    def preprocessing(self) -> Any:
        """open_clip's PreprocessCfg."""
        return self.recipe.preprocessing

    def of_images(self, crops: torch.Tensor) -> Rows:
        """Embed pictures of the model's size, [samples, height, width, 3] uint8."""
        with torch.inference_mode():
            return _rows(self._task.embed_images({"image": crops.to(self.device, non_blocking=True)}))

    def of_texts(self, texts: Sequence[str]) -> Rows:
        return self.of_tokens(self.recipe.tokenize(list(texts)))

    def of_tokens(self, tokens: torch.Tensor) -> Rows:
        """Embed texts as the model's tokens, [texts, context length]."""
        with torch.inference_mode():
            return _rows(self._task.model.encode_text(tokens.to(self.device), normalize=True))


def _rows(embeddings: torch.Tensor) -> Rows:
    return embeddings.float().cpu().numpy()
