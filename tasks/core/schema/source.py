"""The `source` block: one model per kind of raw data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tasks.core.schema.block import Block, Location

PLACE = "place"
"""The value of `key` that combines the tar's name with the sample's own key."""


def require_places(templates: Sequence[str]) -> None:
    """Raise ValueError for a template without a place for the class."""
    for template in templates:
        if "{}" not in template:
            raise ValueError(f"templates: {template!r} has no {{}} where the class name is inserted")


def require_groups(fields: Mapping[str, str]) -> None:
    """Raise ValueError for an invalid regular expression, or one without a group to give the field's
    value."""
    for name, pattern in fields.items():
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"fields.{name} is not a regular expression: {error}") from None
        if groups < 1:
            raise ValueError(f"fields.{name} needs a group in parentheses; the first group is the value")


TAB = ("\\t", "tab")
"""How a tab may be written besides the character itself, which is invisible."""


def _delimiter(value: str) -> str:
    value = "\t" if value.lower() in TAB else value
    if len(value) != 1 or value in '"\r\n':
        raise ValueError(f"{value!r} is not one character such as ';', '|' or tab")
    return value


def _encoding(value: str) -> str:
    try:
        b"a\0\0\0".decode(value, "surrogateescape")  # which idna and punycode cannot
    except (LookupError, ValueError):
        raise ValueError(f"{value!r} is no encoding of text; name one such as cp1252 or cp932") from None
    return value


class ImageFolderSource(Block):
    """A folder of images, with a caption file beside each image or one folder per class."""

    kind: Literal["image_folder"]
    path: Location
    """A folder, read with all visible folders below it. `filter` and `splits` may use two fields: `folder`,
    the first part of the image's path (`splits: {from: folder}` for `train/`, `val/`), and `label`, the
    folder that directly contains the image."""
    captions: Literal["txt", "json", "folder"] = "txt"
    """`txt` and `json` read the file with the image's name and this suffix. With `folder`, the name of the
    image's folder is its class, and the class is inserted into a caption template."""
    field: str | None = None
    """With `captions: json`, the field that holds the caption; all other fields go into the sample's
    `json`."""
    templates: Annotated[list[str], Field(min_length=1)] = ["a photo of a {}"]
    """With `captions: folder`, the caption templates with `{}` for the class; each sample's key selects
    one."""

    @model_validator(mode="after")
    def _captions_are_complete(self) -> Self:
        if self.captions == "json" and self.field is None:
            raise ValueError("captions: json needs field, the name of the caption's field")
        if self.captions != "json" and self.field is not None:
            raise ValueError("field belongs to captions: json")
        require_places(self.templates)
        return self


class TableSource(Block):
    """A table with one row per sample: CSV, TSV, JSONL, Parquet, Arrow, or the annotations of COCO or
    Flickr8k."""

    kind: Literal["table"]
    path: Location
    """A file, a folder with all tables below it, or a pattern such as `raw/{000..041}.parquet`. Files named
    `.json`, `.txt` or `.token` are read only where it names them."""
    delimiter: Annotated[str, AfterValidator(_delimiter)] | None = None
    """The character between the cells of a CSV or TSV, such as `';'` or `tab`; unless given, the first line
    decides."""
    encoding: Annotated[str, AfterValidator(_encoding)] | None = None
    """The encoding of the text, under Python's name, such as `cp1252` or `cp932`; unless given, UTF-8, or
    UTF-16 with its byte order mark."""
    image: str
    """Column with the image: a path relative to the table's folder, an address that the build fetches, or the
    bytes (also as Hugging Face's `{bytes, path}`). Windows' backslashes are read too."""
    root: Location | None = None
    """The folder or address that image paths start at, instead of the table's folder. Absolute paths are then
    those of another machine (`C:\\data\\img\\a.jpg`): the first one of which a file exists below root, with
    folders left out at its front, decides how many are left out of all."""
    caption: str
    """Column with the caption. All other columns except columns of bytes go into the sample's `json`."""
    captions: Literal["one", "all"] = "one"
    """With `all`, the rows that share an image are one sample, and a cell may also be a list of texts: its
    caption is the first one, and `captions` in its `json` has all of them, of which recipe `clip` draws one
    in each epoch. Where the table holds the images themselves, the rows of one have to stand side by side."""
    templates: Annotated[list[str], Field(min_length=1)] | None = None
    """Caption templates with `{}` for the class, for a caption column that names a class, such as Hugging
    Face's `label`. Each sample's row selects one template, and the column goes into the `json` too."""
    fields: dict[str, str] = {}
    """Regular expressions for the table's path, by field name, such as `{split: '(train|test)-'}` for
    `splits: {from: split}`; the first group is the field's value in each of its rows."""
    key: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Column with the sample's key. Unless given, the key is the image's path, or for images as bytes a
    digest of image and caption. `key: IMAGE_COLUMN` uses Hugging Face's path, if the paths are unique. A list
    of columns combines their values into the key: `[image, caption]` makes a sample of each row where five
    rows share an image; `captions: all` stores the image once."""

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        if self.image == self.caption:
            raise ValueError(f"caption: column {self.caption!r} is the image's; name the one with the text")
        if self.captions == "all" and self.templates is not None:
            raise ValueError(
                "templates: captions: all takes the captions as they are; remove one of the keys"
            )
        require_places(self.templates or ())
        require_groups(self.fields)
        return self


class ReportTable(Block):
    """A table of reports, one row per volume."""

    path: Location
    """A file relative to the source's folder, or a pattern such as `{train,valid}_reports.csv`."""
    key: str
    """Column that names the volume's file: its path in the source's folder, or only the file name where that
    is unique. Suffixes are ignored. The same applies to labels and metadata."""
    text: Annotated[list[str], Field(min_length=1)]
    """Columns whose texts are joined by spaces into the report; `Not given.` counts as empty."""


class Labels(Block):
    """A table of labels, one row per volume. Every column except the key is a label."""

    path: Location
    """A file relative to the source's folder, or a pattern."""
    key: str
    """Column that names the volume's file, as in `reports`."""
    missing: Literal["reject", "skip"] = "reject"
    """What becomes of a volume whose row lacks a label, or that has no row: `reject` rejects it as
    `labels.missing`, `skip` accepts it with the labels that it has. In the sample's `json` the others are
    null, and evaluations leave it out for these labels alone. With `skip` an empty cell, NaN and -1, which
    CheXpert writes for uncertain, are unknown labels."""


class Metadata(Block):
    """A table of scanner metadata, one row per volume; the defaults are CT-RATE's column names."""

    path: Location
    """A file relative to the source's folder, or a pattern."""
    key: str
    """Column that names the volume's file, as in `reports`."""
    spacing_xy: str = "XYSpacing"
    """Column with the in-plane spacing in mm, such as `[0.75, 0.75]`: the distance between rows (along y),
    then between columns (along x), as DICOM's PixelSpacing."""
    spacing_z: str = "ZSpacing"
    """Column with the distance between slices in mm."""
    slope: str = "RescaleSlope"
    """Column with the factor from stored numbers to HU, for `rescale: metadata`."""
    intercept: str = "RescaleIntercept"
    """Column with what is added after that."""


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
"""Fields that the `json` of every volume has; `fields` may not use these names."""


class VolumeSource(Block):
    """A folder with one volume per file, whatever its format."""

    path: Location
    """A folder, read with all folders below it, or a pattern."""
    fields: dict[str, str] = {}
    """Regular expressions for the file's path, by field name; the first group is the field's value."""
    reports: ReportTable
    labels: Labels | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _expressions_have_a_group(self) -> Self:
        for name in self.fields:
            if name in FACTS:
                raise ValueError(f"fields.{name}: Tarmac writes {name} for every volume; rename the field")
        require_groups(self.fields)
        return self


class NpzSource(VolumeSource):
    """A folder of NPZ files, one volume per file."""

    kind: Literal["npz"]
    array: str | None = None
    """Name of the array; unless given, the file's only 3D array."""
    scale: float | None = None
    """Factor from the stored numbers to HU, such as 1000 for files that hold HU / 1000."""
    axes: Literal["zyx", "zxy", "yzx", "yxz", "xyz", "xzy"] = "zyx"
    """The body axis of each array axis: z runs from the feet to the head, y from front to back, x from side
    to side. `zyx` means slices of rows, `zxy` is CT-CLIP's order. Volumes are stored with z first."""
    spacing_mm: tuple[float, float, float] | None = None
    """Spacing (z, y, x) in mm of every volume, if no metadata table gives it."""


class NiftiSource(VolumeSource):
    """A folder of NIfTI files (`.nii.gz`, `.nii`), one volume per file."""

    kind: Literal["nifti"]
    rescale: Literal["header", "metadata", "none"] = "header"
    """Source of slope and intercept, which are applied exactly once: the file's header, the metadata table,
    or `none` because the voxels are HU already. A volume that was rescaled twice is rejected."""

    @model_validator(mode="after")
    def _metadata_is_there(self) -> Self:
        if self.rescale == "metadata" and self.metadata is None:
            raise ValueError("rescale: metadata needs a metadata table")
        return self


class ChatSource(Block):
    """Conversations, with or without images: JSON, JSONL or Parquet, one file or folder per subset.

    Turns may be nanoVLM's `{user, assistant}`, `{from, value}` as in LLaVA and ShareGPT, or OpenAI's
    `{role, content}`; each row shows which by itself. A system message becomes the field `system` of the
    sample's `json`."""

    kind: Literal["chat"]
    path: Location
    """A file, a folder with one file or folder per subset, or a pattern such as `raw/cauldron/*.parquet`. Of
    `.json` files only those that the path names are read, such as `llava.json` or `raw/*.json`."""
    images: str | None = "images"
    """Column with a row's images, a list or a single image: bytes, `{bytes, path}`, a `data:` URI, an
    address, or a path relative to the file. Use null if no conversation has images, or if the messages hold
    them, as OpenAI's `image_url`."""
    root: Location | None = None
    """Folder or address that image paths start at instead of the file's folder."""
    texts: str = "texts"
    """Column with the turns, such as `conversations` or `messages`; other fields of a turn are kept. Ratings
    of turns, which `filter` may use, are read from `relevance_ratings` and similar columns. All other columns
    go into the sample's `json`, except columns named `messages` or `ratings`, which Tarmac writes itself."""
    key: str | None = None
    """Column with the row's key within its subset. Unless given, the key is a digest of the row's content, so
    a changed row counts as one removed and one added."""


TEXT_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
GZIP = ".gz"
NAMED_TABLES = (".json", ".json.gz", ".txt", ".token")
"""Tables that a path must name: in folders, files with these suffixes are mostly something else."""
TABLES = (*TEXT_TABLES, ".parquet", ".arrow", *(suffix + GZIP for suffix in TEXT_TABLES))


class Join(Block):
    """Further tars, or a table, whose members are added to the sample with the same key. A sample without a
    partner is rejected as `member.missing`; if both have a member or field, the sample's own is kept."""

    path: Location
    """A folder, pattern or file, as in the source's `path`; a table's fields are added to the sample's
    `json`."""
    key: str | None = None
    """Where the partner's key is: `json:FIELD`, or a table's column; unless given, the tar's own key is
    used."""
    match: Literal["key", "shard"] = "key"
    """With `key` the partner may be in any of the files. With `shard` it must be in the file of the same name
    (`00012.parquet` for `00012.tar`), so only one file is indexed at a time."""

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
    """WebDataset tars made by other tools, grouped into samples as webdataset does. Members that the modality
    does not use (`cls`, `url.txt`) are left out. Images that img2dataset could not download are in no tar,
    so they are not counted as samples."""

    kind: Literal["shards"]
    path: Location
    """A folder, a tar, or a pattern such as `x/{000000..000042}.tar` or `x/*.tar`."""
    key: str | None = None
    """Where the sample's key is: `json:FIELD`; unless given, the tar's own key is used. `place` puts the
    tar's name in front of it, for tars that each number their samples from zero."""
    members: dict[str, str] = {}
    """Members to create from others: `{txt: 'json:caption'}` extracts a field (`json:a.b` a nested one),
    `{jpg: image.jpg}` renames a member."""
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
        raise ValueError(f"key: {key!r} must be json:FIELD, the field that holds the sample's key")


Source = Annotated[
    ImageFolderSource | TableSource | NpzSource | NiftiSource | ChatSource | ShardsSource,
    Field(discriminator="kind"),
]
