"""The options of a CLIP model, checked without open_clip: a wrong name should not cost a build.

Importing open_clip imports torch, which takes seconds. Its models are files whose names are those of the
models, and reading these costs nothing.
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
"""A model of 2 M parameters, most of them in the token table; it learns the digits in half a minute."""
DIGITS_FILE = Path(__file__).with_name("tarmac-digits.json")
QUICK = "-quickgelu"
"""The suffix of models with the activation that OpenAI's weights, and some others, were trained with."""
SIGMOID = {"init_logit_scale": math.log(10), "init_logit_bias": -10.0}
"""Initial values of a model that is trained by the sigmoid loss but was not made for it, as with
open_clip_train's `--siglip`."""
NEEDED: Mapping[str, type] = {"embed_dim": int, "vision_cfg": dict, "text_cfg": dict}
Share = Annotated[float, Field(ge=0, le=1)]
Span = tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]


class Augment(Block):
    """The augmentation of pictures in training: open_clip's AugmentationCfg."""

    scale: Span = (0.9, 1.0)
    """The smallest and the largest share of the picture's area that a crop keeps."""
    ratio: Span = (3 / 4, 4 / 3)
    """The narrowest and the widest crop, as width by height; in open_clip it takes `use_timm`."""
    color_jitter: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, NonNegativeFloat] | None = None
    """How much brightness, contrast, saturation and hue may change."""
    color_jitter_prob: Share = 0.0
    """The probability of that change; with `use_timm` each picture is changed."""
    gray_scale_prob: Share = 0.0
    """The probability that a picture loses its colours; not with `use_timm`."""
    use_timm: bool = False
    """Whether timm's transform is used, which can erase parts of a picture. Such pictures come to the device
    as normalised floats, four times the bytes."""
    re_prob: Share = 0.0
    """With `use_timm`: the probability that parts of a picture are erased, that is, filled with noise."""
    re_count: Annotated[int, Field(ge=1)] = 1
    """With `use_timm`: the largest number of parts that are erased."""

    @model_validator(mode="after")
    def _is_of_one_transform(self) -> Self:
        others = ("color_jitter_prob", "gray_scale_prob") if self.use_timm else ("re_prob", "re_count")
        for name in others:
            if getattr(self, name) != type(self).model_fields[name].default:
                how = "without" if self.use_timm else "with"
                raise ValueError(f"{name} only has an effect {how} use_timm")
        if self.use_timm and not self.re_prob:
            raise ValueError("use_timm only has an effect with re_prob; its crops are the usual ones")
        return self

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if not self.use_timm and (self.color_jitter is None) != (self.color_jitter_prob == 0):
            raise ValueError("color_jitter and color_jitter_prob only have an effect together")
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if low > high:
                raise ValueError(
                    f"{name}: must rise from the smaller to the larger, not from {low} to {high}"
                )
        if self.scale[1] > 1:
            raise ValueError(f"scale: no crop is larger than the picture, as {self.scale[1]} would be")
        return self


class ClipOptions(Options):
    """`train.model` of recipe clip. Weights are looked up where they are loaded; without open_clip any name
    passes."""

    modality: ClassVar[str] = "image_text"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({"loss", "embed"})
    parts: ClassVar[tuple[str, ...]] = ("vision", "text", "temperature")

    name: str | None = None
    """`tarmac/digits`, or one of open_clip's models such as `ViT-B-32`."""
    config: dict[str, Any] | None = None
    """Instead of a name: the model as open_clip describes it, `{embed_dim, vision_cfg, text_cfg, …}`."""
    pretrained: str | None = None
    """A tag that open_clip knows for that model, or a file of weights."""
    loss: Literal["clip", "siglip"] | None = None
    """The symmetric cross-entropy of CLIP, or SigLIP's sigmoid loss, whose logits have a bias; by default the
    loss that the model was made for."""
    image_size: Annotated[int, Field(ge=1)] | None = None
    """Pixels per side, where they differ from the model's; position embeddings of pretrained weights are
    interpolated."""
    patch_dropout: Annotated[float, Field(gt=0, lt=1)] | None = None
    """The share of a picture's patches that are dropped in training; for vision transformers only."""
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
        require_parts(self.title, described)
        if self.loss == "clip":
            require_no_bias(self.title, described)
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
        return None if name is None else known_model(name)

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
        """The model's name in open_clip's registry; a model given by `config` is named after its content."""
        return registered(self.name) if self.name is not None else f"tarmac-{digest(self.config)[:12]}"

    @property
    def described(self) -> dict[str, Any] | None:
        """The model as open_clip describes it, changed by these options; None without open_clip."""
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
    """The needs of a whole open_clip model; `described` is given where its name does not lead to it."""
    weights = [] if pretrained is None else [weights_need(f"{key}.pretrained", name, pretrained)]
    text = (described or model_config(name) or {}).get("text_cfg", {})
    return [*weights, *of_open_clip_text(key, text, weights=pretrained is None)]


def weights_need(key: str, name: str, given: str) -> Need:
    """The need for weights of an open_clip model, given by a tag, which open_clip tries first, or
    by a path."""
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
    """Import open_clip's module that lists its weights, without the rest of the package and without torch;
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
    sys.modules.update(hidden)  # type: ignore[arg-type]  # importing a module that is None raises ImportError
    try:
        return importlib.import_module(f"{beside}.pretrained")
    finally:
        for name in hidden:
            del sys.modules[name]


def known_model(name: str) -> str:
    """Return the name; ValueError for one that open_clip does not know, as far as open_clip is installed."""
    files = _files()
    if len(files) > 1 and model_config(name) is None:
        raise ValueError(f"unknown model {name!r}; {instead(name, list(files))}")
    return name


def require_parts(title: str, described: Mapping[str, Any]) -> None:
    if "multimodal_cfg" in described:
        raise ValueError(
            f"{title} also writes captions (CoCa), for which there is no loss here; try ViT-B-32"
        )
    text = described["text_cfg"]
    theirs = text.get("hf_model_name") or text.get("hf_tokenizer_name")
    if theirs and find_spec("transformers") is None:
        raise ValueError(f"{title} reads text with {theirs} of Hugging Face: pip install transformers")


def require_activation(name: str, weights: str) -> None:
    """Raise ValueError for weights of open_clip that were trained with another activation than the
    model's."""
    listed, described = _listed_weights(), model_config(name)
    known = {} if listed is None else listed.get_pretrained_cfg(registered(name), weights)
    is_quick = (described or {}).get("quick_gelu", False)
    if known and known.get("quick_gelu", False) != is_quick:
        other = name.removesuffix(QUICK) if is_quick else name + QUICK
        raise ValueError(
            f"pretrained: the weights {weights} were trained with another activation than that of {name}; "
            f"take name: {other}"
        )


def require_no_bias(title: str, described: Mapping[str, Any]) -> None:
    if described.get("init_logit_bias") is not None:
        raise ValueError(f"{title} is made for a sigmoid loss (SigLIP); CLIP's does not train its bias")


def _has_patches(vision: Mapping[str, Any]) -> bool:
    """Whether the image tower is a transformer in which open_clip can drop patches."""
    timm = vision.get("timm_model_name")
    return str(timm).startswith(("vit_", "eva")) if timm else isinstance(vision.get("layers"), int)


def model_config(name: str) -> dict[str, Any] | None:
    """Return the model as open_clip describes it, such as `{"vision_cfg": {"image_size": 224, …}, …}`; None
    for an unknown name."""
    files = _files()
    file = files.get(name) or files.get(registered(name))
    return None if file is None else read_json(file)


def registered(name: str) -> str:
    """Return a model's name in open_clip's registry, where names are file names."""
    return name.replace("/", "-")


def _files() -> dict[str, Path]:
    """Return the files of all models by name, Tarmac's first."""
    spec = find_spec("open_clip")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    theirs = (path for folder in folders for path in Path(folder, "model_configs").glob("*.json"))
    return {DIGITS: DIGITS_FILE, **{path.stem: path for path in sorted(theirs)}}
