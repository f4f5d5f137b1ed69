"""CLIP: an image tower and a text tower that meet in one space, by open_clip's models, loss and transforms.

Source: A. Radford et al., "Learning transferable visual models from natural language supervision" (2021).
What open_clip's trainer does to a CLIP model is done here too: symmetric contrastive loss over the batch,
temperature held below 100, no weight decay on biases, norms and temperature, and Adam's constants by the name
of the model (open_clip_train, main.py and params.py).
"""

from __future__ import annotations

import logging
import math
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from tasks.core.errors import DataError, UsageError
from tasks.loader.decoders import decode_text, image_of
from tasks.loader.workers import Transform
from tasks.models import clip_config
from tasks.models.openclip import open_clip
from tasks.models.pictures import Crop, normalised

open_clip.add_model_config(clip_config.DIGITS_FILE)

HIGHEST_LOGIT_SCALE = math.log(100)
OF_TRANSFORMERS: Mapping[str, Any] = {"betas": (0.9, 0.98), "eps": 1e-6}
"""Adam's constants for vision transformers, which `tarmac/digits` is one of."""
OF_OTHERS: Mapping[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}
UNDECAYED = ("bn", "ln", "bias", "logit_scale")
"""What the name of a parameter without weight decay holds, if it has more than one dimension."""
KEPT_CAPTIONS, LONGEST_KEPT = 4096, 200
"""How many captions, of how many characters, a loader worker remembers the tokens of: 5 MB at most."""
QUICK = "-quickgelu"
"""Ends the names of models with the activation that OpenAI's weights, and some others, were trained with."""
UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, pickle.UnpicklingError, SafetensorError)
"""What open_clip lets through when weights cannot be fetched, parsed or fitted."""


@dataclass(frozen=True)
class ClipRecipe:
    """`name` is one of open_clip's; `pretrained` a tag it knows for that model, or a file of weights."""

    name: str
    pretrained: str | None = None
    modality = "image_text"

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> Self:
        """The recipe of a config's `train.model`."""
        return cls(*clip_config.check(model))

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        weights = self.pretrained if pretrained else None
        if weights is not None:
            self._check_pretrained(weights)
        try:
            with _without_notices():
                model: nn.Module = open_clip.create_model(self.name, pretrained=weights)
        except UNREADABLE as error:
            if weights is None:
                raise
            raise DataError(
                f"train.model.pretrained: {weights} does not load into {self.name}: {error}"
            ) from error
        return model

    def transform(self, is_train: bool) -> Transform:
        return ClipTransform(self.name, self.preprocessing, is_train)

    def parameter_groups(self, model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
        is_transformer = "vit" in self.name.lower() or self.name == clip_config.DIGITS
        options = OF_TRANSFORMERS if is_transformer else OF_OTHERS
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        decayed = [p for name, p in trained if _is_decayed(name, p)]
        undecayed = [p for name, p in trained if not _is_decayed(name, p)]
        return [
            {"params": decayed, "weight_decay": weight_decay, **options},
            {"params": undecayed, "weight_decay": 0.0, **options},
        ]

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        images = self.embed_images(model, batch)
        texts = model.encode_text(batch["text"], normalize=True)
        loss: Tensor = open_clip.ClipLoss()(images, texts, model.logit_scale.exp())
        return loss

    def after_step(self, model: Any) -> None:
        with torch.no_grad():
            model.logit_scale.clamp_(0, HIGHEST_LOGIT_SCALE)

    def embed_images(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        pixels = normalised(batch["image"], self.preprocessing)
        embeddings: Tensor = model.encode_image(pixels, normalize=True)
        return embeddings

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        tokens: Tensor = self._tokenizer(list(texts))
        return tokens

    def embed_texts(self, model: Any, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenize(texts).to(model.logit_scale.device)
        embeddings: Tensor = model.encode_text(tokens, normalize=True)
        return embeddings

    @cached_property
    def _tokenizer(self) -> Any:
        return open_clip.get_tokenizer(self._registered)

    @property
    def _registered(self) -> str:
        return clip_config.registered(self.name)

    @cached_property
    def preprocessing(self) -> Any:
        """open_clip's PreprocessCfg: the model's image size, and what its weights are used to."""
        size = open_clip.get_model_config(self._registered)["vision_cfg"]["image_size"]
        known = open_clip.get_pretrained_cfg(self._registered, self.pretrained) if self.pretrained else {}
        defaults = asdict(open_clip.transform.PreprocessCfg())
        merged = open_clip.transform.merge_preprocess_dict(defaults, {**known, "size": size})
        return open_clip.transform.PreprocessCfg(**merged)

    def _check_pretrained(self, weights: str) -> None:
        """UsageError when there are no such weights, or they go with another activation than the model's."""
        known = open_clip.get_pretrained_cfg(self._registered, weights)
        if not known and not os.path.isfile(weights):
            tags = open_clip.list_pretrained_tags_by_model(self._registered)
            raise UsageError(
                f"train.model.pretrained: {weights!r} is no file, and no weights of {self.name} have "
                f"that name; {clip_config.instead(weights, tags)}"
            )
        is_quick = open_clip.get_model_config(self._registered).get("quick_gelu", False)
        if known and known.get("quick_gelu", False) != is_quick:
            other = self.name.removesuffix(QUICK) if is_quick else self.name + QUICK
            raise UsageError(
                f"train.model.name: the weights {weights} were trained with another activation than that of "
                f"{self.name}; take {other}"
            )


class ClipTransform:
    """Members to `image` [height, width, 3] uint8 and `text` [context length] int64.

    For training the image is cropped at random as by open_clip's trainer, by a generator that starts from the
    sample's seed, so that the crop depends neither on the worker nor on what it did before.
    """

    def __init__(self, name: str, preprocessing: Any, is_train: bool) -> None:
        self._crop = Crop(preprocessing, is_train)
        self._tokenize = open_clip.get_tokenizer(clip_config.registered(name))
        self._tokens: dict[str, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without the tokens that are kept: each would take a file descriptor on its way to a worker."""
        return {**self.__dict__, "_tokens": {}}

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
        if "txt" not in sample:
            raise DataError(f"no member txt among {', '.join(sorted(sample))}; recipe clip needs a caption")
        text = self._tokens_of(decode_text(sample["txt"]))
        picture = image_of(sample)
        if generator_seed is None:
            return {"image": self._crop(picture), "text": text}
        generator = torch.default_generator  # torchvision's transforms draw from no other
        before = generator.get_state()
        generator.manual_seed(generator_seed)
        try:
            return {"image": self._crop(picture), "text": text}
        finally:
            generator.set_state(before)

    def _tokens_of(self, caption: str) -> Tensor:
        """Those of a caption that came before, such as the name of a class, are kept: they take longer than a
        small picture."""
        tokens = self._tokens.get(caption)
        if tokens is None:
            tokens = self._tokenize(caption)[0]
            if len(caption) <= LONGEST_KEPT:
                if len(self._tokens) == KEPT_CAPTIONS:
                    self._tokens.clear()
                self._tokens[caption] = tokens
        return tokens


@contextmanager
def _without_notices() -> Iterator[None]:
    """open_clip warns of random weights when it loads none, also where a checkpoint's are about to follow."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _is_decayed(name: str, parameter: Tensor) -> bool:
    return parameter.ndim >= 2 and not any(part in name for part in UNDECAYED)
