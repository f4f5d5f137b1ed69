"""CLIP: an image and a text tower with a common embedding space, with open_clip's models, loss and
transforms.

Source: A. Radford et al., "Learning transferable visual models from natural language supervision" (2021). The
training follows open_clip's trainer: symmetric contrastive loss over the batch, temperature held below 100,
no weight decay on biases, norms and temperature (open_clip_train, main.py).
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid
from torch.utils.checkpoint import checkpoint

from tasks.core.errors import DataError, UsageError, first_line
from tasks.core.schema.training import Pack
from tasks.loader.collate import Batch, Collate, stack
from tasks.loader.decoders import captions_of, decode_text, image_of
from tasks.loader.workers import Transform
from tasks.models.clip.clip_options import DIGITS_FILE, SIGMOID, ClipOptions, weights_need
from tasks.models.clip.openclip import open_clip
from tasks.models.clip.pictures import Crop, RandomCrop, TimmCrop, normalised
from tasks.models.needs import PathNeed
from tasks.models.recipes import Recipe
from tasks.models.task import ALL, Contrastive, Embedder, Features, Loss, both_ways

open_clip.add_model_config(DIGITS_FILE)

Tokenize = Callable[[Any], Tensor]
"""Maps a text, or several, to [texts, context length] int64."""
USUAL_SIZE = 224
"""Pixels per side, for models that do not specify it."""
HIGHEST_LOGIT_SCALE = math.log(100)
UNDECAYED = ("bn", "ln", "bias", "logit_scale")
"""Parts of the names of parameters without weight decay, beside those with one dimension."""
KEPT_CAPTIONS, LONGEST_KEPT = 4096, 200
"""How many captions, and of how many characters, a loader worker caches the tokens of: 5 MB at most."""
UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    AssertionError,
    KeyError,
    pickle.UnpicklingError,
    SafetensorError,
)
"""The errors that open_clip raises when a model cannot be built, or weights cannot be fetched,
parsed or fitted."""


class ClipRecipe(Recipe):
    """CLIP models of open_clip, trained the way open_clip's trainer does."""

    def __init__(self, options: ClipOptions, key: str = "train.model") -> None:
        """`key` is the config's block that the errors name."""
        self.options, self.name, self.pretrained = options, options.title, options.pretrained
        self._key = key
        self.collate: Collate = stack
        if options.config is not None:  # open_clip's public function takes a file
            open_clip.factory._MODEL_CONFIGS[options.registered] = deepcopy(options.config)

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        weights = self.pretrained if pretrained else None
        if weights is not None:
            need = weights_need(f"{self._key}.pretrained", self.options.registered, weights)
            if isinstance(need, PathNeed) and not os.path.isfile(weights):
                raise UsageError(f"{need.problem}; {need.fix}")
        described = open_clip.get_model_config(self.options.registered)
        gets_bias = self.options.is_sigmoid and described.get("init_logit_bias") is None
        try:
            with _without_notices():
                model: nn.Module = open_clip.create_model(
                    self.options.registered,
                    device=torch.get_default_device(),
                    pretrained=weights,
                    pretrained_text=pretrained,
                    force_image_size=self.options.image_size,
                    force_patch_dropout=self.options.patch_dropout,
                    **(SIGMOID if gets_bias else {}),
                )
        except UNREADABLE as error:
            if weights is None and self.options.config is None:
                raise
            if weights is None:
                raise UsageError(f"{self._key}.config: open_clip cannot build this model: {error}") from error
            raise DataError(
                f"{self._key}.pretrained: {weights} does not load into {self.name}: {error}"
            ) from error
        return model

    def task(self, model: nn.Module) -> ClipTask:
        return ClipTask(model, self.tokenize, self.preprocessing, is_sigmoid=self.options.is_sigmoid)

    def transform(self, is_train: bool) -> Transform:
        settings, augment = self.preprocessing, self.options.augment
        cut = TimmCrop if augment.use_timm else RandomCrop
        training = cut(settings, augment) if is_train else None
        return ClipTransform(self.tokenize, Crop(settings), training)

    def example(self, samples: int, pack: Pack | None = None) -> Batch:
        text = open_clip.get_model_config(self.options.registered)["text_cfg"]
        size = self.preprocessing.size
        height, width = (size, size) if isinstance(size, int) else size
        return {
            "key": [""] * samples,
            "image": torch.zeros(samples, height, width, 3, dtype=torch.uint8),
            "text": torch.zeros(samples, text.get("context_length", 77), dtype=torch.long),
        }

    @cached_property
    def tokenize(self) -> Tokenize:
        """The tokenizer of open_clip, or of transformers where the model names one."""
        try:
            with _without_notices():
                found: Tokenize = open_clip.get_tokenizer(self.options.registered)
        except (OSError, ValueError) as error:  # transformers finds it neither here nor on the hub
            problem = first_line(error)
            raise DataError(
                f"{self._key}: the tokenizer of {self.name} cannot be loaded: {problem}"
            ) from error
        return found

    def part_of(self, name: str) -> str:
        """The image tower is `visual`, and what belongs to neither tower is the temperature."""
        first = name.partition(".")[0]
        if first == "visual":
            return "vision"
        return "temperature" if first in ("logit_scale", "logit_bias") else "text"

    def is_decayed(self, name: str, parameter: Tensor) -> bool:
        return parameter.ndim >= 2 and not any(part in name for part in UNDECAYED)

    @cached_property
    def preprocessing(self) -> Any:
        """open_clip's PreprocessCfg: the model's image size, and the normalisation that its weights were
        trained with."""
        registered = self.options.registered
        described = open_clip.get_model_config(registered)["vision_cfg"]
        size = self.options.image_size or described.get("image_size", USUAL_SIZE)
        known = open_clip.get_pretrained_cfg(registered, self.pretrained) if self.pretrained else {}
        defaults = asdict(open_clip.transform.PreprocessCfg())
        merged = open_clip.transform.merge_preprocess_dict(defaults, {**known, "size": size})
        return open_clip.transform.PreprocessCfg(**merged)


class ClipTask(Contrastive, Embedder):
    """An open_clip model with CLIP's or SigLIP's loss; its features are the embeddings of images and texts.

    The loss is open_clip's with `--gather-with-grad` and `--local-loss`: of the logits of all ranks each rank
    computes its own rows.
    """

    def __init__(
        self, model: nn.Module, tokenize: Tokenize, preprocessing: Any, *, is_sigmoid: bool = False
    ) -> None:
        super().__init__(model)
        self._tokenize = tokenize
        self._preprocessing = preprocessing
        self._is_sigmoid = is_sigmoid

    def encode(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        texts: Tensor = self.model.encode_text(batch["text"], normalize=True)
        return {"image": self.embed_images(batch), "text": texts}

    def contrast(self, features: Features, own: slice = ALL) -> Loss:
        images, texts, scale = features["image"], features["text"], self.model.logit_scale.exp()
        bias = {"logit_bias": self.model.logit_bias} if self._is_sigmoid else {}
        if self._is_sigmoid:
            mean = sigmoid_loss(images, texts, scale, self.model.logit_bias, own)
        else:
            places = torch.arange(len(images), device=images.device)[own]
            rows = both_ways(images, texts, scale, own)
            mean = (cross_entropy(rows[0], places) + cross_entropy(rows[1], places)) / 2
        weight = mean.new_full((), len(images[own]))
        logs = {"logit_scale": scale, **bias}
        return Loss(mean * weight, weight, {name: value.detach().clone() for name, value in logs.items()})

    def chance(self, samples: int) -> float | None:
        """Return ln(samples); None for the sigmoid loss, with which a model that learns also begins with a
        long rest at chance."""
        return None if self._is_sigmoid else math.log(samples)

    def after_step(self) -> None:
        with torch.no_grad():
            self.model.logit_scale.clamp_(0, HIGHEST_LOGIT_SCALE)

    @property
    def logit_scale(self) -> float:
        return float(self.model.logit_scale.detach().exp())

    def embed_images(self, batch: Mapping[str, Any]) -> Tensor:
        pixels = normalised(batch["image"], self._preprocessing)
        embeddings: Tensor = self.model.encode_image(pixels, normalize=True)
        return embeddings

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        return self._tokenize(list(texts))

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenize(texts).to(self.model.logit_scale.device)
        embeddings: Tensor = self.model.encode_text(tokens, normalize=True)
        return embeddings


def sigmoid_loss(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor, own: slice = ALL) -> Tensor:
    """Return SigLIP's loss of the images `own` with all texts, as a mean over these images.

    It is added up over blocks of as many texts as there are own images, and each block's logits are computed
    again for the gradient, so it takes the memory of one block: that of SigLIP's exchange in a ring.
    Source: X. Zhai et al., "Sigmoid loss for language image pre-training" (2023), section 3.3.
    """
    mine, size = images[own], len(images[own])
    places = torch.arange(len(images), device=images.device)

    def of_block(mine: Tensor, texts: Tensor, labels: Tensor) -> Tensor:
        return -logsigmoid(labels * (scale * mine @ texts.T + bias)).sum()

    losses = []
    for start in range(0, len(texts), size):
        block = slice(start, start + size)
        labels = 2 * (places[own][:, None] == places[block]).to(mine.dtype) - 1
        if size == len(texts):
            losses.append(of_block(mine, texts, labels))
        else:
            given = (mine, texts[block], labels)
            losses.append(checkpoint(of_block, *given, use_reentrant=False, preserve_rng_state=False))
    return torch.stack(losses).sum() / size


class ClipTransform:
    """Maps members to `image` [height, width, 3] uint8 and `text` [context length] int64; for training with
    timm's augmentation to `image` [3, height, width] float32.

    For training the image is cropped at random as open_clip's trainer does, and one of its captions is drawn,
    by generators seeded per sample and epoch, so that neither depends on the worker or on its earlier
    samples.
    """

    def __init__(self, tokenize: Tokenize, crop: Crop, training: RandomCrop | TimmCrop | None = None) -> None:
        self._crop = crop
        self._training = training
        self._tokenize = tokenize
        self._tokens: dict[str, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the cached tokens: each would take a file descriptor on its way to a worker."""
        return {**self.__dict__, "_tokens": {}}

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
        if "txt" not in sample:
            raise DataError(f"no member txt among {', '.join(sorted(sample))}; recipe clip needs a caption")
        if generator_seed is None or self._training is None:
            text = self._tokens_of(decode_text(sample["txt"]))
            return {"image": self._crop(image_of(sample)), "text": text}
        captions = captions_of(sample)
        drawn = 0
        if (
            len(captions) > 1
        ):  # by a generator of its own, so that the crop is not drawn from the same numbers
            drawn = random.Random(f"caption {generator_seed}").randrange(len(captions))
        text = self._tokens_of(captions[drawn])
        with _drawing_from(generator_seed):
            return {"image": self._training(sample), "text": text}

    def _tokens_of(self, caption: str) -> Tensor:
        """Cache the tokens of captions, because some recur, such as the name of a class: tokenizing takes
        longer than decoding a small picture."""
        tokens = self._tokens.get(caption)
        if tokens is None:
            tokens = self._tokenize(caption)[0]
            if len(caption) <= LONGEST_KEPT:
                if len(self._tokens) == KEPT_CAPTIONS:
                    self._tokens.clear()
                self._tokens[caption] = tokens
        return tokens


@contextmanager
def _drawing_from(seed: int) -> Iterator[None]:
    """Seed both generators for a while: torchvision's transforms draw from torch's, open_clip's
    from `random`'s."""
    generator = torch.default_generator
    before, plain = generator.get_state(), random.getstate()
    generator.manual_seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)
        random.setstate(plain)


@contextmanager
def _without_notices() -> Iterator[None]:
    """Silence open_clip's warning about random weights, which it logs also where a checkpoint's weights will
    follow."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
