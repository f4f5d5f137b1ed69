"""Where raw data comes from: one model a kind of source."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.core.schema.block import Block, Location

PLACE = "place"
"""As the `key` of tars: the tar's name and the sample's own key."""


class ImageFolderSource(Block):
    """A folder of images, each with its caption in a file beside it, or with one folder a class."""

    kind: Literal["image_folder"]
    path: Location
    """A folder; all below it counts but what is hidden. `filter` and `splits` may use `folder`, the first on
    the way to an image (`splits: {from: folder}` for `train/`, `val/`), and `label`, the one it lies in."""
    captions: Literal["txt", "json", "folder"] = "txt"
    """`txt` and `json`: the file of the image's name with that suffix. `folder`: the class is the name of the
    image's folder, the caption a template filled with it."""
    field: str | None = None
    """With `captions: json`, the field that holds the caption; the others go into the sample's `json`."""
    templates: Annotated[list[str], Field(min_length=1)] = ["a photo of a {}"]
    """With `captions: folder`, the sentences to fill; each sample draws one by its key."""

    @model_validator(mode="after")
    def _captions_are_complete(self) -> Self:
        if self.captions == "json" and self.field is None:
            raise ValueError("captions: json needs field, the name of the caption's field")
        if self.captions != "json" and self.field is not None:
            raise ValueError("field belongs to captions: json")
        for template in self.templates:
            if "{}" not in template:
                raise ValueError(f"templates: {template!r} has no {{}} for the class to stand in")
        return self


class TableSource(Block):
    """A table with a row a sample: CSV, TSV, JSONL or Parquet; a file, a folder of them, or a pattern."""

    kind: Literal["table"]
    path: Location
    """A file, a folder with all tables below it, or a pattern such as `raw/{000..041}.parquet`."""
    image: str
    """Column with the image: its path, relative to its table's folder, its address, or its bytes (also as
    Hugging Face's `{bytes, path}`)."""
    caption: str
    """Column with the caption. All further columns, but such of bytes, go into the sample's `json` member."""
    key: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Column with the sample's key. Without it the image's path is the key, of images as bytes a digest of
    image and caption; `key: IMAGE_COLUMN` makes Hugging Face's path the key, where no two are alike. A list
    of columns, whose values make the key together, is for rows that share an image: `[image, caption]` where
    an image has five captions."""

    @model_validator(mode="after")
    def _columns_are_two(self) -> Self:
        if self.image == self.caption:
            raise ValueError(f"caption: column {self.caption!r} is the image's; name the one with the text")
        return self


class Reports(Block):
    """A table of reports, one row a volume."""

    path: Location
    """Relative to the source's folder; a pattern such as `{train,valid}_reports.csv` takes several."""
    key: str
    """Column that names the volume's file: by its path within the source's folder, or by the last part of it
    where no other file has the same. Suffixes do not count. The same holds for labels and metadata."""
    text: Annotated[list[str], Field(min_length=1)]
    """Columns whose texts, joined by a space, are the report; `Not given.` is no text."""


class Labels(Block):
    """A table of labels, one row a volume; every column but the key is a label, which every row must give."""

    path: Location
    key: str


class Metadata(Block):
    """A table of what the scanner said, one row a volume, with CT-RATE's column names."""

    path: Location
    key: str
    spacing_xy: str = "XYSpacing"
    """Column with the in-plane spacing in mm, such as `[0.75, 0.75]`: the distance between rows (along y),
    then between columns (along x), as DICOM's PixelSpacing."""
    spacing_z: str = "ZSpacing"
    slope: str = "RescaleSlope"
    intercept: str = "RescaleIntercept"


FACTS = (
    "volume_name",
    "labels",
    "axes",
    "spacing_mm",
    "spacing_before_mm",
    "orientation",
    "orientation_before",
    "rescale",
    "window",
    "shape",
    "shape_before",
    "pad_fraction",
    "tells_hu",
    "chunk_crc32c",
)
"""What the `json` of every volume says; no field may take these names."""


class VolumeSource(Block):
    """What a folder with a volume a file has, whatever its format."""

    path: Location
    fields: dict[str, str] = {}
    """Named regular expressions over the file's path; the first group is the field's value."""
    reports: Reports
    labels: Labels | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _expressions_have_a_group(self) -> Self:
        for name, pattern in self.fields.items():
            if name in FACTS:
                raise ValueError(f"fields.{name}: every volume has a {name} of its own; rename the field")
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"fields.{name} is no regular expression: {error}") from None
            if groups < 1:
                raise ValueError(f"fields.{name} needs a group in parentheses, its first is the value")
        return self


class NpzSource(VolumeSource):
    """A folder of NPZ files, one volume per file."""

    kind: Literal["npz"]
    array: str | None = None
    """Name of the array; without it the file's only 3D array."""
    scale: float | None = None
    """Factor that brings the stored numbers to HU, such as 1000 for files that hold HU / 1000."""
    axes: Literal["zyx", "zxy", "yzx", "yxz", "xyz", "xzy"] = "zyx"
    """Which axes of the body the array runs along: z from the feet to the head, y from front to back, x from
    side to side. `zyx` are slices of rows, `zxy` is CT-CLIP's order. z comes first in what is stored."""
    spacing_mm: tuple[float, float, float] | None = None
    """Spacing (z, y, x) of every volume, where no table of metadata tells it."""


class NiftiSource(VolumeSource):
    """A folder of NIfTI files (`.nii.gz`, `.nii`), one volume a file."""

    kind: Literal["nifti"]
    rescale: Literal["header", "metadata", "none"] = "header"
    """Where slope and intercept come from, applied exactly once: the file's header, the table of metadata, or
    nowhere because the voxels are HU already. A volume that would be rescaled twice is rejected."""

    @model_validator(mode="after")
    def _metadata_is_there(self) -> Self:
        if self.rescale == "metadata" and self.metadata is None:
            raise ValueError("rescale: metadata needs a metadata table")
        return self


class ChatSource(Block):
    """Conversations about images in nanoVLM's row format: JSONL or Parquet, one file or folder a subset."""

    kind: Literal["chat"]
    path: Location
    """A file, a folder with a subset a file or folder, or a pattern such as `raw/cauldron/*.parquet`."""
    images: str | None = "images"
    """Column with a row's images: bytes, `{bytes, path}` or paths relative to the file; a list, one or none.
    Null where no conversation has any."""
    texts: str = "texts"
    """Column with the turns, a list of `{user, assistant}`. Their ratings, which `filter` may name, stand in
    `relevance_ratings` and so on. All further columns go into the sample's `json` member, but such as are
    called `messages` or `ratings`: there these two names are the sample's own."""
    key: str | None = None
    """Column with the row's key within its subset; without it the row's content makes the key, so that a row
    that is changed counts as one that went and one that came."""


TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


class Join(Block):
    """Further tars, or a table, whose members join those of the same key. A sample that finds no partner is
    rejected as `member.missing`; where both sides have a member or a field, the sample's own stays."""

    path: Location
    """A folder, pattern or file as the source's own; a table's fields join the sample's `json`."""
    key: str | None = None
    """The joined sample's key: `json:FIELD`, or a table's column; without it the tar's own key."""
    match: Literal["key", "shard"] = "key"
    """`key`: a partner may stand in any of the files. `shard`: only in the file of the same name, as
    `00012.parquet` beside `00012.tar`; then one file is indexed at a time."""

    @property
    def is_table(self) -> bool:
        return self.path.lower().endswith(TABLES)

    @model_validator(mode="after")
    def _key_fits(self) -> Self:
        if self.is_table and not self.key:
            raise ValueError("a table needs key, the column with the sample's key")
        if not self.is_table:
            _require_field(self.key)
        return self


class ShardsSource(Block):
    """WebDataset tars made by others, grouped into samples as webdataset does. Members that the modality
    does not know (`cls`, `url.txt`) are left out. What img2dataset could not download is in no tar, so it
    is no sample."""

    kind: Literal["shards"]
    path: Location
    """A folder, a tar, or a pattern such as `x/{000000..000042}.tar` or `x/*.tar`."""
    key: str | None = None
    """The sample's key: `json:FIELD`; without it the tar's own key. `place` puts the tar's name before that,
    for tars of which each begins to count anew."""
    members: dict[str, str] = {}
    """Members made out of others: `{txt: 'json:caption'}` takes a field (`json:a.b` one inside another),
    `{jpg: image.jpg}` renames."""
    join: list[Join] = []

    @model_validator(mode="after")
    def _fields_have_names(self) -> Self:
        if self.key != PLACE:
            _require_field(self.key)
        for target, origin in self.members.items():
            if not origin.removeprefix("json:"):
                raise ValueError(f"members.{target} needs a member such as image.jpg, or json:FIELD")
        return self


def _require_field(key: str | None) -> None:
    if key is not None and (key == "json:" or not key.startswith("json:")):
        raise ValueError(f"key: {key!r} is no json:FIELD, which a tar's samples are named by")


Source = Annotated[
    ImageFolderSource | TableSource | NpzSource | NiftiSource | ChatSource | ShardsSource,
    Field(discriminator="kind"),
]
