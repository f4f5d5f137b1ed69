"""A second recipe, in one file: it guesses how long a caption is from its picture.

Its loss is no contrast and is weighted by characters, as a language model's is by tokens. The options stand in
the same file, so torch is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tasks.core.schema.recipes import Defaults
from tasks.loader.decoders import decode_text, image_of
from tasks.models import recipes
from tasks.models.recipes import Capability

NAME = "lengths"
DEFAULTS = Defaults(0.2, "matrices", 0, 0, "cosine", 0, (0.9, 0.95), 1e-8, "fp32")
ROW = ("tests.models.lengths:Options", "tests.models.lengths:LengthRecipe", DEFAULTS)
SIDE = 8


class Options(recipes.Options):
    """`train.model` of recipe lengths."""

    modality: ClassVar[str] = "image_text"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({"loss"})

    width: int = 16


class LengthRecipe(recipes.Recipe):
    """Two layers on a small grey picture."""

    def __init__(self, options: Options) -> None:
        from tasks.loader.collate import stack

        self.width, self.collate = options.width, stack

    def build_model(self, *, pretrained: bool = True) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(SIDE * SIDE, self.width), nn.Tanh(), nn.Linear(self.width, 1))

    def task(self, model: Any) -> Any:
        from tasks.models.task import Loss, Task

        class Guess(Task):
            def forward(self, batch: Mapping[str, Any]) -> Loss:
                errors = (self.model(batch["image"]).squeeze(1) - batch["length"].log()).square()
                weight = batch["length"].sum()
                return Loss((errors * batch["length"]).sum(), weight, {"characters": weight})

        return Guess(model)

    def transform(self, is_train: bool) -> Any:
        return transform

    def example(self, samples: int, pack: Any = None) -> Any:
        import torch

        return {
            "key": [""] * samples,
            "image": torch.zeros(samples, SIDE * SIDE),
            "length": torch.ones(samples),
        }

    def part_of(self, name: str) -> str:
        return "model"


def transform(sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
    import torch

    picture = image_of(sample).convert("L").resize((SIDE, SIDE))
    pixels = torch.tensor(list(picture.tobytes()), dtype=torch.float32) / 255
    if generator_seed is not None:
        pixels += 0.01 * torch.rand(len(pixels), generator=torch.Generator().manual_seed(generator_seed))
    return {"image": pixels, "length": torch.tensor(float(len(decode_text(sample["txt"]))))}
