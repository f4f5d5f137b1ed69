"""CT-CLIP: a 3D vision tower and a report tower with a common embedding space.

Source: I. E. Hamamci et al., "Developing generalist foundation models from a multimodal dataset for 3D
computed tomography" (2024), and its code. Model, tokens and voxels equal the original. The contrastive loss
compares the samples of all ranks, where CT-CLIP's compares those of one GPU, and it cannot overflow. Volumes
travel as the int16 HU that shards hold, half the size of floats; the model's device does the arithmetic.
"""

from __future__ import annotations

import math
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import get_worker_info

from tasks.core.errors import DataError, UsageError, first_line
from tasks.core.process import available_cores
from tasks.core.schema.training import Pack
from tasks.dataset.formats.volumes.geometry import axes_of
from tasks.dataset.formats.volumes.stored import Crop
from tasks.loader import batch_memory
from tasks.loader.collate import Batch, columns
from tasks.loader.decoders import decode_json, decode_text, decode_volume, volume_of
from tasks.loader.workers import Transform
from tasks.models.ct.ct_clip_options import CtClipOptions, Sides
from tasks.models.ct.ct_reports import ReportTower, reports_of
from tasks.models.ct.ct_vit import CTViT
from tasks.models.recipes import Recipe
from tasks.models.task import ALL, Contrastive, Embedder, Features, Loss, both_ways

HIGHEST_LOGIT_SCALE = math.log(100)
HU_PER_UNIT = 1000.0
"""CT-CLIP's models read HU / 1000."""
MOST_THREADS = 4
CODEBOOK = "visual_transformer.vq.embed"
UNUSED = re.compile(
    r"visual_transformer\.(to_patch_emb_first_frame|to_pixels|to_pixels_first_frame|vq)\."
    r"|visual_transformer\..*\.(null_kv|context_norm\.(gamma|beta))$"
    r"|text_transformer\.(pooler\.|embeddings\.(position_ids|token_type_ids)$)"
    r"|to_(text|visual)_latent_extra\."
)
"""Parameters in CT-CLIP's files that play no part in comparing a volume with a report."""


class CtClipRecipe(Recipe):
    """CT-CLIP and models of its architecture."""

    def __init__(self, options: CtClipOptions) -> None:
        self.options = options
        self.reports = reports_of(options)
        self.collate = Trimmed(self.reports)

    def build_model(self, *, pretrained: bool = True) -> nn.Module:
        weights = self.options.pretrained if pretrained else None
        model = CtClip(self.options, self.reports, pretrained=pretrained and weights is None)
        if weights is not None:
            load_weights(model, weights)
        return model

    def task(self, model: nn.Module) -> CtClipTask:
        return CtClipTask(model, self.reports, self.options.window)

    def transform(self, is_train: bool) -> Transform:
        return CtClipTransform(self.options, self.reports, is_train)

    def example(self, samples: int, pack: Pack | None = None) -> Batch:
        return {
            "key": [""] * samples,
            "volume": torch.zeros(samples, *self.options.input_shape, dtype=torch.int16),
            "shift": torch.zeros(samples),
            "text": torch.zeros(samples, self.reports.context, dtype=torch.long),
        }

    def part_of(self, name: str) -> str:
        """Parts follow from CT-CLIP's names."""
        first = name.partition(".")[0]
        if first in ("visual_transformer", "to_visual_latent"):
            return "vision"
        return "temperature" if first == "temperature" else "text"


class CtClip(nn.Module):
    """Both towers and their projections; parameters are named as in CT-CLIP."""

    def __init__(self, options: CtClipOptions, reports: ReportTower, *, pretrained: bool) -> None:
        super().__init__()
        tower = options.tower
        _, height, width = tower.grid
        self.visual_transformer = CTViT(tower)
        self.text_transformer, text_width = reports.build(pretrained=pretrained)
        self.to_visual_latent = nn.Linear(height * width * tower.width, tower.space, bias=False)
        self.to_text_latent = nn.Linear(text_width, tower.space, bias=False)
        self.temperature = nn.Parameter(torch.tensor(options.logit_scale))


class CtClipTask(Contrastive, Embedder):
    """The symmetric contrastive loss of volumes and reports."""

    def __init__(self, model: nn.Module, reports: ReportTower, window: tuple[int, int]) -> None:
        super().__init__(model)
        self._reports, self._window = reports, window

    def encode(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        return {"volume": self.embed_images(batch), "text": self._embedded(batch["text"])}

    def contrast(self, features: Features, own: slice = ALL) -> Loss:
        volumes, texts = features["volume"], features["text"]
        scale = self.model.temperature.exp()
        places = torch.arange(len(texts), device=texts.device)[own]
        rows = both_ways(texts, volumes, scale, own)
        both = [functional.cross_entropy(similar, places, reduction="sum") for similar in rows]
        total = (both[0] + both[1]) / 2
        return Loss(total, total.new_full((), len(places)), {"logit_scale": scale.detach()})

    def chance(self, samples: int) -> float | None:
        return math.log(samples)

    def after_step(self) -> None:
        with torch.no_grad():
            self.model.temperature.clamp_(max=HIGHEST_LOGIT_SCALE)

    @property
    def logit_scale(self) -> float:
        return float(self.model.temperature.detach().exp())

    def embed_images(self, batch: Mapping[str, Any]) -> Tensor:
        """Embed volumes: average the tokens along the depth and project all of them at once."""
        tokens = self.model.visual_transformer(scaled(batch["volume"], batch["shift"], self._window))
        return _unit(self.model.to_visual_latent(tokens.mean(1).flatten(1)))

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        return self._reports.tokenize(texts)

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        tokens = self._reports.trimmed(self.tokenize(texts))
        return self._embedded(tokens.to(self.model.temperature.device))

    def _embedded(self, tokens: Tensor) -> Tensor:
        read = self._reports.read(self.model.text_transformer, tokens)
        return _unit(self.model.to_text_latent(read))


class CtClipTransform:
    """Maps members to `volume` [depth, height, width] int16 HU, `shift` [] in HU, `text` [context] int64. The
    volume is decompressed at its place in the batch."""

    reads_crops = True

    def __init__(self, options: CtClipOptions, reports: ReportTower, is_train: bool) -> None:
        self._shape, self._reports, self._is_train = options.input_shape, reports, is_train
        self._flip, self._jitter = options.flip, options.jitter

    def __call__(self, sample: dict[str, bytes], generator_seed: int | None) -> dict[str, Any]:
        if "txt" not in sample:
            raise DataError(f"no member txt among {', '.join(sorted(sample))}; recipe ct_clip needs a report")
        draws = None
        if self._is_train and generator_seed is not None:
            draws = np.random.default_rng(generator_seed)
        crop = crop_of(volume_of(sample).shape, self._shape, draws)
        volume = batch_memory.row("volume", self._shape, torch.int16)
        decode_volume(sample, crop, volume.numpy(), spare_threads())
        shift = 0
        if draws is not None:
            shift = int(draws.integers(-self._jitter, self._jitter, endpoint=True))
            if self._flip and draws.integers(2):
                volume.copy_(volume.flip(_left_to_right(sample)))
        return {
            "volume": volume,
            "shift": torch.tensor(shift, dtype=torch.float32),
            "text": self._reports.tokenize([decode_text(sample["txt"])])[0],
        }


class Trimmed:
    """Gathers samples, and cuts off the token columns that no text of the batch reaches."""

    def __init__(self, reports: ReportTower) -> None:
        self._reports = reports

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> Batch:
        batch = columns(samples)
        return {**batch, "text": self._reports.trimmed(torch.stack(batch["text"])).contiguous()}


def spare_threads() -> int:
    """Return how many threads may decompress a volume: the cores of this process's machine that the workers
    of all its ranks leave over."""
    loading = get_worker_info()
    workers = 1 if loading is None else loading.num_workers
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(min(available_cores() // (workers * ranks), MOST_THREADS), 1)


def crop_of(stored: Sequence[int], wanted: Sides, draws: np.random.Generator | None) -> Crop:
    """Choose the crop of a volume, at random or from the middle; DataError where the volume is too small."""
    room = [side - part for side, part in zip(stored, wanted, strict=True)]
    if min(room) < 0:
        has, reads = (" x ".join(map(str, sides)) for sides in (stored, wanted))
        raise DataError(
            f"the volume has {has} voxels, but the model reads {reads}; build with dataset.volume.shape: "
            f"{list(wanted)}, or take a smaller train.model.shape"
        )
    starts = [side // 2 if draws is None else int(draws.integers(side, endpoint=True)) for side in room]
    depth, height, width = (slice(at, at + part) for at, part in zip(starts, wanted, strict=True))
    return depth, height, width


def scaled(volumes: Tensor, shift: Tensor, window: tuple[int, int]) -> Tensor:
    """Map HU [samples, depth, height, width] int16 to the model's input: raised by `shift` [samples], clipped
    to the window, in thousands, in the type of `shift`."""
    raised = volumes.to(shift.dtype).add_(shift.view(-1, 1, 1, 1))
    return raised.clamp_(*window).div_(HU_PER_UNIT)


def load_weights(model: nn.Module, path: str) -> None:
    """Load a file in CT-CLIP's layout, or one that Tarmac saved.

    Raises UsageError where there is no such file, DataError where it belongs to another model.
    """
    where = f"train.model.pretrained: {path}"
    if not Path(path).is_file():
        raise UsageError(f"{where}: there is no such file")
    try:
        state = _read(path)
    except (OSError, RuntimeError, ValueError, pickle.UnpicklingError, SafetensorError) as error:
        raise DataError(f"{where} holds no weights that can be read: {first_line(error)}") from error
    mine = model.state_dict()
    if CODEBOOK in state and CODEBOOK not in mine:
        entries = state[CODEBOOK].shape[1]
        raise UsageError(f"{where} has a codebook: set train.model.codebook: {entries}")
    lacking, unknown = sorted(mine.keys() - state.keys()), sorted(state.keys() - mine.keys())
    other = [name for name in mine.keys() & state.keys() if mine[name].shape != state[name].shape]
    for names, problem in ((lacking, "lacks"), (unknown, "has"), (sorted(other), "has another shape of")):
        if names:
            raise DataError(f"{where} is of another model: it {problem} {names[0]}")
    model.load_state_dict(state)


def _read(path: str) -> dict[str, Tensor]:
    """Return the tensors by this recipe's names; ValueError for a file that is no table of tensors."""
    found: Any = (
        load_file(path)
        if path.endswith(".safetensors")
        else torch.load(path, map_location="cpu", weights_only=True)
    )
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError("it is not a table of tensors by name")
    named = {name.removeprefix("module."): value for name, value in found.items()}
    given = named.pop("visual_transformer.vq._codebook.embed", named.get(CODEBOOK))
    used = {name: value for name, value in named.items() if not UNUSED.match(name)}
    return used if given is None else {**used, CODEBOOK: given}


def _left_to_right(sample: Mapping[str, bytes]) -> int:
    """Return the axis of the volume that runs from left to right."""
    facts = decode_json(sample.get("json", b"{}"))
    axes = axes_of(facts.get("axes")) if isinstance(facts, dict) else None
    if axes is None:
        raise DataError("json does not record the axes of the volume; take out train.model.flip")
    return axes.index("x")


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows.to(torch.promote_types(rows.dtype, torch.float32)), dim=-1)
