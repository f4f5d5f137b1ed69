"""CLIP that learns from embeddings that teachers made of the data beforehand: MobileCLIP's dataset
reinforcement.

Source: P. K. A. Vasu et al., "MobileCLIP: Fast image-text models through multi-modal reinforced training"
(2024), sections 3 and 4, and its trainer, a patch for open_clip (https://github.com/apple/ml-mobileclip,
training/open_clip_v2.patch). The loss of images I and texts T is

    w0 * CE(I, T) + w1 * (H(P(I -> T), S(I -> T)) + H(P(T -> I), S(T -> I))) / 2

where CE is CLIP's own loss, S the student's softmax over the batch, P the mean of the teachers' softmaxes,
each at its own temperature, and H the cross entropy. The loss of the images with synthetic captions is added
to it. Two things differ from that trainer, both on several ranks: the teachers' P(T -> I) is always a softmax
over images, where the patch without --local-loss transposes P(I -> T); and teachers are compared in float32,
whatever the student's precision.

Held-out samples are evaluated with the same loss on the plain image, with the embedding of one of its
augmentations as the teachers' target; the sample's content decides which. CLIP's own loss would use captions
alone, and where these are poor it rises while the model learns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor, nn

from tasks.core.errors import DataError
from tasks.core.schema.training import Pack
from tasks.loader.collate import Batch
from tasks.loader.decoders import image_of
from tasks.loader.workers import Transform
from tasks.models.clip.clip import ClipRecipe, ClipTask, ClipTransform, Tokenize
from tasks.models.clip.clip_options import ClipOptions
from tasks.models.clip.pictures import Crop
from tasks.models.reinforced.clip_reinforced_options import ReinforcedOptions
from tasks.models.reinforced.reinforcement import Embedding, choose, replay
from tasks.models.task import ALL, Features, Loss, both_ways


class ReinforcedRecipe(ClipRecipe):
    """CLIP models of open_clip, trained the way MobileCLIP's trainer does."""

    def __init__(self, options: ReinforcedOptions) -> None:
        super().__init__(ClipOptions(name=options.name, pretrained=options.pretrained))
        self._options = options

    def task(self, model: nn.Module) -> ReinforcedTask:
        return ReinforcedTask(model, self.tokenize, self.preprocessing, self._options)

    def transform(self, is_train: bool) -> Transform:
        return ReinforcedTransform(self.tokenize, self.preprocessing, self._options)

    def example(self, samples: int, pack: Pack | None = None) -> Batch:
        batch, taught = super().example(samples), torch.zeros(samples, self._options.width)
        batch |= {"teacher_image": taught, "teacher_text": taught.clone()}
        if self._options.synthetic_captions == "add":
            batch |= {"synthetic": batch["text"].clone(), "teacher_synthetic": taught.clone()}
        return batch


class ReinforcedTask(ClipTask):
    """An open_clip model with the loss above where a batch has teachers' embeddings, else with CLIP's."""

    def __init__(
        self, model: nn.Module, tokenize: Tokenize, preprocessing: Any, options: ReinforcedOptions
    ) -> None:
        super().__init__(model, tokenize, preprocessing)
        self._widths = [teacher.width for teacher in options.teachers]
        self._scales = [teacher.logit_scale for teacher in options.teachers]
        self._weights = options.loss_weights
        self._kinds_of_text = 2 if options.synthetic_captions == "add" else 1

    def encode(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Encode the batch; all texts go through the text tower at once."""
        if "synthetic" not in batch:
            features = super().encode(batch)
        else:
            both = torch.cat([batch["text"], batch["synthetic"]])
            texts, synthetic = self.model.encode_text(both, normalize=True).chunk(2)
            features = {"image": self.embed_images(batch), "text": texts, "synthetic": synthetic}
        return {**features, **{name: batch[name] for name in batch if name.startswith("teacher_")}}

    def contrast(self, features: Features, own: slice = ALL) -> Loss:
        if "teacher_image" not in features:
            return super().contrast(features, own)
        scale = self.model.logit_scale.exp()
        losses = [
            self._of_pairs(features, scale, texts, own)
            for texts in ("text", "synthetic")
            if texts in features
        ]
        contrastive, distillation, entropy = (torch.stack(parts).sum() for parts in zip(*losses, strict=True))
        mean = self._weights.contrastive * contrastive + self._weights.distillation * distillation
        weight = mean.new_full((), len(features["image"][own]))
        logs = {
            "logit_scale": scale.detach(),
            "contrastive": contrastive.detach(),
            "distillation": distillation.detach(),
            "teacher_entropy": entropy,
        }
        return Loss(mean * weight, weight, logs)

    def chance(self, samples: int) -> float | None:
        """Return ln(samples) for each weighted part: a student that knows nothing is equally far from its
        own text and from whatever the teachers say."""
        weights = self._weights.contrastive + self._weights.distillation
        return weights * self._kinds_of_text * math.log(samples)

    def _of_pairs(
        self, features: Features, scale: Tensor, texts: str, own: slice
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean losses of the images with one kind of texts, and the teachers' entropy, which is
        the lower bound of the distillation."""
        rows = both_ways(features["image"], features[texts], scale, own)
        student = torch.stack([logits.log_softmax(dim=1) for logits in rows])
        taught = self._taught(features["teacher_image"], features[f"teacher_{texts}"], own)
        contrastive = -student.diagonal(own.start or 0, dim1=1, dim2=2).mean()
        distillation = -(taught * student).sum(dim=2).mean()
        return contrastive, distillation, torch.special.entr(taught).sum(dim=2).mean()

    @torch.no_grad()
    def _taught(self, images: Tensor, texts: Tensor, own: slice) -> Tensor:
        """Return the teachers' mean softmax, [2, own, samples]: over the texts of each image and back."""
        with torch.autocast(images.device.type, enabled=False):
            taught = images.new_zeros(2, len(images[own]), len(texts))
            pairs = zip(*(torch.split(one, self._widths, 1) for one in (images, texts)), strict=True)
            for teacher_scale, (image, text) in zip(self._scales, pairs, strict=True):
                for sums, logits in zip(taught, both_ways(image, text, teacher_scale, own), strict=True):
                    sums += logits.softmax(dim=1)
            return taught / len(self._scales)


class ReinforcedTransform(ClipTransform):
    """Maps members to `image` [height, width, 3] uint8, augmented in training, `text` and `synthetic`
    [context length] int64, and `teacher_image`, `teacher_text`, `teacher_synthetic` [width].

    `synthetic` is missing where a synthetic caption may replace the real one.
    """

    def __init__(self, tokenize: Tokenize, preprocessing: Any, options: ReinforcedOptions) -> None:
        super().__init__(tokenize, Crop(preprocessing))
        size = preprocessing.size
        self._size = (size, size) if isinstance(size, int) else tuple(size)
        self._interpolation = preprocessing.interpolation
        self._width, self._share = options.width, options.synthetic_captions

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
        if generator_seed is None:
            chosen = choose(sample, crc32(sample.get("paug.json", b"")), self._share)
            image = self._crop(image_of(sample))
        else:
            chosen = choose(sample, generator_seed, self._share)
            view = replay(chosen.picture, chosen.augmentation, self._size, self._interpolation)
            image = torch.from_numpy(np.array(view))
        made = {
            "image": image,
            "text": self._tokens_of(chosen.caption.text),
            "teacher_image": self._checked(chosen.embedding),
            "teacher_text": self._checked(chosen.caption.embedding),
        }
        if chosen.added is not None:
            made["synthetic"] = self._tokens_of(chosen.added.text)
            made["teacher_synthetic"] = self._checked(chosen.added.embedding)
        return made

    def _checked(self, embedding: Embedding) -> Tensor:
        if len(embedding) != self._width:
            raise DataError(
                f"the teachers' embeddings are {len(embedding)} wide, but train.model.teachers has "
                f"{self._width}; set the width of each teacher that the data was made with"
            )
        return torch.from_numpy(embedding)
