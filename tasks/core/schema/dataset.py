"""The `dataset` block: raw data, its rules, and how it becomes shards and splits."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, FiniteFloat, model_serializer, model_validator

from tasks.core.schema.block import Block, Folder, Location, Share, Size
from tasks.core.schema.source import Source
from tasks.core.stores import REMOTE_SCHEMES

Positive = Annotated[float, Field(gt=0)]
Side = Annotated[int, Field(ge=1)]


class Limits(Block):
    """The lowest and the highest value that a field may have."""

    min: float = -math.inf
    max: float = math.inf

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not self.min <= self.max or (self.min == -math.inf and self.max == math.inf):
            raise ValueError("needs min, max or both, the lower one first")
        return self

    @model_serializer
    def _as_given(self) -> dict[str, float]:
        return {name: limit for name in ("min", "max") if math.isfinite(limit := getattr(self, name))}


Rule = str | bool | int | FiniteFloat
"""A value that a field must have; a number is a minimum."""

CONTENT = "content"
"""The value of `group_by` that groups samples which are equal or nearly equal."""
MOST_PIXELS = 1 << 29
"""Upper limit of `max_pixels`, so that readers of the shards can rely on one too."""

MODALITIES_OF = {
    "image_folder": ("image_text",),
    "table": ("image_text",),
    "npz": ("volume_report",),
    "nifti": ("volume_report",),
    "chat": ("chat",),
    "shards": ("image_text", "reinforced", "volume_report", "chat"),
}
"""The modalities that each kind of source can hold."""


class ImageRules(Block):
    """Which images are accepted, and how they are stored."""

    max_side: Annotated[int, Field(ge=1)] | None = None
    """Longer images are scaled down to this many pixels on the longer side."""
    min_side: Annotated[int, Field(ge=1)] = 1
    """Images with a shorter side are rejected as `image.too_small`."""
    max_pixels: Annotated[int, Field(ge=1, le=MOST_PIXELS)] = 100_000_000
    """Images with more pixels are rejected as `image.too_large` before they are decoded."""
    encode: Literal["keep", "jpg", "png", "webp"] = "keep"
    """The format of images that cannot be stored as they are, because shards hold only jpg, png and webp or
    because they are longer than `max_side`. All others keep their bytes. `keep` uses the image's own format
    and rejects images in a format that shards do not hold."""
    check: Literal["decode", "header"] = "decode"
    """`decode` decodes every image completely. `header` checks only its header and its end, which is several
    times faster, but damage in the middle is found only by `tarmac verify --full`."""


class VolumeRules(Block):
    """How a CT volume becomes a training sample at build time, as in CT-CLIP."""

    spacing_mm: tuple[Positive, Positive, Positive] | None = None
    """Spacing (z, y, x) in mm to resample to, trilinearly; unless given, volumes keep their own spacing."""
    window: tuple[int, int] | None = None
    """HU values [lower, upper] to clip to."""
    shape: tuple[Side, Side, Side] | None = None
    """Shape (D, H, W) to crop or pad to around the centre. Padding has the window's lower value, else
    -1000."""
    encode: Literal["blosc2", "npy"] = "blosc2"
    """`blosc2` compresses in chunks; `npy` stores the array as it is, for readers that map files."""

    @model_validator(mode="after")
    def _window_is_open(self) -> Self:
        if self.window is not None and not -32768 <= self.window[0] < self.window[1] <= 32767:
            raise ValueError("window needs [lower, upper] in HU, within int16")
        return self


class ShardRules(Block):
    """How samples are divided into shards."""

    samples: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of samples per shard; 256 unless `bytes` is given."""
    bytes: Size | None = None
    """Maximum size of a shard, in place of `samples`. An image that is rotated upright may take slightly more
    bytes than its original."""
    order: Literal["hash", "source"] = "hash"
    """`hash` shuffles the samples once, and later changes rewrite few shards; `source` keeps the source's
    order."""

    @model_validator(mode="before")
    @classmethod
    def _one_maximum(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("samples") is not None and value.get("bytes") is not None:
            raise ValueError("takes samples or bytes, not both")
        if isinstance(value, dict) and value.get("samples") is None and value.get("bytes") is None:
            return {**value, "samples": 256}
        return value


class Splits(Block):
    """How samples are divided into splits: shares to hold out, chosen by key hash or by group, such as
    `{val: 0.05, group_by: patient}`; or `{from: COLUMN}`, the field that names every sample's split."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Share]

    group_by: str | None = None
    """Field whose samples stay together in one split, such as the patient; `content` keeps samples together
    that are equal or nearly equal, which takes a second look at each before the build."""
    column: str | None = Field(None, alias="from")
    """Field that names the split of each sample; no other key may be given beside it."""

    @property
    def group_column(self) -> str | None:
        """The field that groups samples; None where nothing or their content does."""
        return None if self.group_by == CONTENT else self.group_by

    @property
    def shares(self) -> dict[str, float]:
        """The held-out share of each split, by the split's name."""
        return self.__pydantic_extra__

    @model_validator(mode="after")
    def _leave_some_to_train(self) -> Self:
        for name in self.shares:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name == "train":
                raise ValueError(
                    f"{name!r} cannot be held out; a split is a word such as val, and train is the rest"
                )
        if self.column is not None and (self.shares or self.group_by is not None):
            others = [*self.shares, *(["group_by"] if self.group_by is not None else [])]
            raise ValueError(
                f"from: {self.column} names every sample's split, so remove {' and '.join(others)}: "
                f"--set 'dataset.splits={{from: {self.column}}}'"
            )
        if sum(self.shares.values()) >= 1:
            raise ValueError("the shares held out leave nothing to train on")
        return self

    @model_serializer
    def _given(self) -> dict[str, Any]:
        named = {"group_by": self.group_by, "from": self.column}
        return {**self.shares, **{key: value for key, value in named.items() if value is not None}}


class Dataset(Block):
    """The raw data, and the dataset that is built from them."""

    output: Folder
    """Folder of the dataset. With an address such as `s3://bucket/digits` the dataset is built in
    `data/digits` and mirrored to the address."""
    mirror: Location | None = None
    """Address to which each published version is copied, for readers on other machines."""
    modality: Literal["image_text", "reinforced", "volume_report", "chat"]
    """What a sample consists of: an image and its caption, the same with what teachers add to it, a CT volume
    and its report, or a conversation about images."""
    private: bool = False
    """Keep samples and keys out of all pages and trackers, which then show counts only."""
    source: Source | None = None
    """The raw data; its `kind` decides which keys it has."""
    sources: list[Source] | None = None
    filter: dict[str, Rule | list[Rule] | Limits] = {}
    """Rules on fields of a sample: a number is a minimum, `{min: 1, max: 3}` gives limits, a text must be
    equal, a list holds all allowed values. A field is a column of the source or, if that has no such column,
    a statistic that the build measures, such as `sharpness`, `contrast`, `border`, `caption_words`, `width`
    or `colour`; a number that could not be measured matches. Samples that do not match count as filtered, not
    as rejected."""
    leak_budget: Share = 0.01
    """Share of a held-out split's samples that may equal, or nearly equal, one that is trained on; with more,
    `tarmac build` ends with an error and `tarmac run` does not train."""
    image: ImageRules = ImageRules()
    volume: VolumeRules = VolumeRules()
    shard: ShardRules = ShardRules(samples=256)
    splits: Splits = Splits.model_validate({"val": 0.15})
    reject_budget: Share = 0.05
    """Share of rejected samples that a build tolerates; the build stops once it is certain to exceed it."""
    keep: Annotated[int, Field(ge=1)] = 3
    """Number of versions kept, the current one included."""
    license: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """License of the samples under its name on the Hugging Face Hub (`cc-by-4.0`, `other`); it is written
    into the dataset card of each version."""

    @model_validator(mode="after")
    def _one_or_more_sources(self) -> Self:
        if (self.source is None) == (not self.sources):
            given = (
                "both are given: remove one"
                if self.source is not None
                else "neither is given, or the list is empty"
            )
            raise ValueError(f"needs either source or a list of sources; {given}")
        for source in self.all_sources:
            if self.modality not in MODALITIES_OF[source.kind]:
                raise ValueError(f"modality {self.modality} cannot come from a source of kind {source.kind}")
        return self

    @model_validator(mode="before")
    @classmethod
    def _mirror_of_remote_output(cls, value: Any) -> Any:
        """Replace a remote output by a local folder and a mirror at the remote address."""
        scheme, mark, _ = str(value.get("output") if isinstance(value, dict) else "").partition("://")
        if mark and scheme not in REMOTE_SCHEMES:
            raise ValueError(f"output: {scheme}:// cannot be written; use a path or s3://, gs://")
        if isinstance(value, dict) and mark:
            address = str(value["output"]).rstrip("/")
            if "://" not in address:
                raise ValueError(f"output: {address}// names no bucket")
            if value.get("mirror") not in (None, address):
                raise ValueError("output is remote, so it is the mirror; leave mirror out")
            return {**value, "output": f"data/{address.rpartition('/')[2]}", "mirror": address}
        return value

    @property
    def all_sources(self) -> list[Source]:
        return [self.source] if self.source is not None else list(self.sources or ())
