"""What a config may say of a CLIP model, checked without open_clip: a wrong name should not cost a build.

open_clip brings torch, which takes seconds to import; its models are files with their names, which do not.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, field_validator, model_validator

from tasks.core.errors import instead
from tasks.core.files import digest, read_json
from tasks.core.schema.block import Block
from tasks.models.needs import HubNeed, Need, PathNeed, UnknownNeed, of_open_clip_text, open_clip_weights
from tasks.models.recipes import Capability, Options

DIGITS = "tarmac/digits"
"""2 M parameters, most of them the token table; learns the digits in half a minute."""
DIGITS_FILE = Path(__file__).with_name("tarmac-digits.json")
QUICK = "-quickgelu"
"""Ends the names of models with the activation that OpenAI's weights, and some others, were trained with."""
SIGMOID = {"init_logit_scale": math.log(10), "init_logit_bias": -10.0}
"""What a model begins with that is to be trained by the sigmoid loss and was not made for it, as by
open_clip_train's `--siglip`."""
NEEDED: Mapping[str, type] = {"embed_dim": int, "vision_cfg": dict, "text_cfg": dict}
Share = Annotated[float, Field(ge=0, le=1)]
Span = tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]


class Augment(Block):
    """What happens to a picture in training: open_clip's AugmentationCfg.

    Its `use_timm` is not offered, nor what needs it (`re_prob`, `re_count`): timm erases from the normalised
    picture, and here pictures travel as bytes and are normalised where the model is.
    """

    scale: Span = (0.9, 1.0)
    """The smallest and the largest share of the picture's area that is cropped out."""
    ratio: Span = (3 / 4, 4 / 3)
    """The narrowest and the widest crop, as width by height; in open_clip it takes `use_timm`."""
    color_jitter: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] | None = None
    """How far brightness, contrast, saturation and hue may change."""
    color_jitter_prob: Share = 0.0
    """How many pictures that happens to."""
    gray_scale_prob: Share = 0.0
    """How many pictures lose their colours."""

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if (self.color_jitter is None) != (self.color_jitter_prob == 0):
            raise ValueError("color_jitter and color_jitter_prob have an effect together only")
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if low > high:
                raise ValueError(f"{name}: goes from the smaller to the larger, not from {low} to {high}")
        if self.scale[1] > 1:
            raise ValueError(f"scale: no crop is larger than the picture, as {self.scale[1]} would be")
        return self


class ClipOptions(Options):
    """`train.model` of recipe clip. Weights are looked for where they are loaded; without open_clip any name
    passes."""

    modality: ClassVar[str] = "image_text"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({"loss", "embed"})
    parts: ClassVar[tuple[str, ...]] = ("vision", "text", "temperature")

    name: str | None = None
    """`tarmac/digits`, or one of open_clip's models such as `ViT-B-32`."""
    config: dict[str, Any] | None = None
    """In the place of a name: the model as open_clip describes it, `{embed_dim, vision_cfg, text_cfg, …}`."""
    pretrained: str | None = None
    """A tag that open_clip knows for that model, or a file of weights."""
    loss: Literal["clip", "siglip"] | None = None
    """The symmetric cross-entropy of CLIP, or SigLIP's sigmoid loss, whose logits have a bias; unless given,
    that for which the model is made."""
    image_size: Annotated[int, Field(ge=1)] | None = None
    """Pixels of a side, where they are to be others than the model's; position embeddings of pretrained
    weights are interpolated."""
    patch_dropout: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share of a picture's patches that are left out in training; of vision transformers only."""
    augment: Augment = Augment()

    @model_validator(mode="after")
    def _is_described_once(self) -> Self:
        if (self.name is None) == (self.config is None):
            raise ValueError("needs either name (one of open_clip's models, or tarmac/digits) or config")
        return self

    @model_validator(mode="after")
    def _is_trainable(self) -> Self:
        described = self.described
        if described is None:
            return self
        _require_parts(self.title, described)
        if self.loss == "clip":
            _require_no_bias(self.title, described)
        if self.patch_dropout is not None and not _has_patches(described["vision_cfg"]):
            raise ValueError(f"patch_dropout: the image tower of {self.title} drops no patches")
        return self

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        if self.name is not None and self.pretrained is not None and not self.is_external:
            require_activation(self.name, self.pretrained)
        return self

    @field_validator("name")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        return None if name is None else _known(name)

    @field_validator("config")
    @classmethod
    def _describes(cls, config: dict[str, Any] | None) -> dict[str, Any] | None:
        for part, kind in NEEDED.items():
            if config is not None and not isinstance(config.get(part), kind):
                raise ValueError(f"lacks {part}; open_clip's model_configs/*.json show what a model is")
        return config

    @property
    def title(self) -> str:
        """The model's name for messages."""
        return self.name or "the model of train.model.config"

    @property
    def registered(self) -> str:
        """The model's name in open_clip's registry; one that is given by `config` is named by its content."""
        return registered(self.name) if self.name is not None else f"tarmac-{digest(self.config)[:12]}"

    @property
    def described(self) -> dict[str, Any] | None:
        """The model as open_clip describes it, with what these options change; None without open_clip."""
        found = deepcopy(self.config) if self.name is None else model_config(self.name)
        if found is not None and self.image_size is not None:
            found["vision_cfg"]["image_size"] = self.image_size
        return found

    @property
    def needs(self) -> Sequence[Need]:
        return open_clip_needs("train.model", self.registered, self.pretrained, self.described)

    @property
    def is_sigmoid(self) -> bool:
        """Whether the loss is SigLIP's."""
        if self.loss is not None:
            return self.loss == "siglip"
        return (self.described or {}).get("init_logit_bias") is not None


def open_clip_needs(
    key: str, name: str, pretrained: str | None, described: Mapping[str, Any] | None = None
) -> Sequence[Need]:
    """What a whole model of open_clip needs; `described` where it is not found by its name."""
    found: list[Need] = []
    if pretrained is not None:
        found.append(weights_need(f"{key}.pretrained", name, pretrained))
    text = (described or model_config(name) or {}).get("text_cfg", {})
    return [*found, *of_open_clip_text(key, text, weights=pretrained is None)]


def weights_need(key: str, name: str, given: str) -> Need:
    """Weights of a model of open_clip, by a tag, which goes first as in open_clip, or by a path."""
    listed = _listed_weights()
    if listed is None and not os.path.exists(given) and os.sep not in given:
        return UnknownNeed(key, f"{given} is looked up by open_clip, which is not installed")
    place = "" if listed is None else listed.get_pretrained_cfg(registered(name), given).get("hf_hub", "")
    repository, _, file = place.rpartition("/")
    if repository:
        return HubNeed(key, repository, (open_clip_weights(file),))
    tags = [] if listed is None else listed.list_pretrained_tags_by_model(registered(name))
    if not tags:
        return PathNeed(key, given)
    return PathNeed(key, given, f", and no weights of {name} have that name", instead(given, tags))


def _listed_weights() -> ModuleType | None:
    """open_clip's module that lists its weights, imported without the rest of the package and without torch;
    None where open_clip is not installed."""
    spec = find_spec("open_clip")
    if spec is None or spec.submodule_search_locations is None:
        return None
    if "open_clip.pretrained" in sys.modules:
        return sys.modules["open_clip.pretrained"]
    beside = "_tarmac_open_clip"
    if beside not in sys.modules:
        package = ModuleType(beside)
        package.__path__ = list(spec.submodule_search_locations)
        sys.modules[beside] = package
    hidden = {"safetensors.torch": None} if "safetensors.torch" not in sys.modules else {}
    sys.modules.update(hidden)  # type: ignore[arg-type]  # what is None there raises ImportError
    try:
        return importlib.import_module(f"{beside}.pretrained")
    finally:
        for name in hidden:
            del sys.modules[name]


def trainable(name: str) -> str:
    """The name, if CLIP's own loss trains such a model; ValueError with the reason and the fix."""
    described = model_config(_known(name))
    if described is not None:
        _require_parts(name, described)
        _require_no_bias(name, described)
    return name


def _known(name: str) -> str:
    files = _files()
    if len(files) > 1 and model_config(name) is None:
        raise ValueError(f"unknown model {name!r}; {instead(name, list(files))}")
    return name


def _require_parts(title: str, described: Mapping[str, Any]) -> None:
    if "multimodal_cfg" in described:
        raise ValueError(f"{title} also writes captions (CoCa), which has no loss here; try ViT-B-32")
    text = described["text_cfg"]
    theirs = text.get("hf_model_name") or text.get("hf_tokenizer_name")
    if theirs and find_spec("transformers") is None:
        raise ValueError(f"{title} reads text by {theirs} of Hugging Face: pip install transformers")


def require_activation(name: str, weights: str) -> None:
    """ValueError for weights of open_clip's that were trained with another activation than the model has."""
    listed, described = _listed_weights(), model_config(name)
    known = {} if listed is None else listed.get_pretrained_cfg(registered(name), weights)
    is_quick = (described or {}).get("quick_gelu", False)
    if known and known.get("quick_gelu", False) != is_quick:
        other = name.removesuffix(QUICK) if is_quick else name + QUICK
        raise ValueError(
            f"pretrained: the weights {weights} were trained with another activation than that of {name}; "
            f"take name: {other}"
        )


def _require_no_bias(title: str, described: Mapping[str, Any]) -> None:
    if described.get("init_logit_bias") is not None:
        raise ValueError(f"{title} is made for a sigmoid loss (SigLIP); CLIP's does not train its bias")


def _has_patches(vision: Mapping[str, Any]) -> bool:
    """Whether the image tower is a transformer that open_clip can have drop patches."""
    timm = vision.get("timm_model_name")
    return str(timm).startswith(("vit_", "eva")) if timm else isinstance(vision.get("layers"), int)


def model_config(name: str) -> dict[str, Any] | None:
    """The model as open_clip describes it, such as `{"vision_cfg": {"image_size": 224, …}, …}`; None for a
    name that is not known here."""
    files = _files()
    file = files.get(name) or files.get(registered(name))
    return None if file is None else read_json(file)


def registered(name: str) -> str:
    """A model's name in open_clip's registry, whose names are those of files."""
    return name.replace("/", "-")


def _files() -> dict[str, Path]:
    """The files of all models by their names, ours first."""
    spec = find_spec("open_clip")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    theirs = (path for folder in folders for path in Path(folder, "model_configs").glob("*.json"))
    return {DIGITS: DIGITS_FILE, **{path.stem: path for path in sorted(theirs)}}
