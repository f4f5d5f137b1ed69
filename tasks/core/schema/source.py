"""Where raw data comes from: one model a kind of source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.core.schema.block import Block


class TableSource(Block):
    """A table with a row a sample and the path of its image: CSV, TSV, JSONL or Parquet."""

    kind: Literal["table"]
    path: Path
    image: str
    """Column with the image's path, relative to the table's folder."""
    caption: str
    """Column with the caption. All further columns go into the sample's `json` member."""
    key: str | None = None
    """Column with the sample's key; without it the image's path makes the key."""


class Reports(Block):
    """A CSV of reports, one row a volume."""

    path: Path
    """Relative to the source's folder."""
    key: str
    """Column that names the volume's file."""
    text: Annotated[list[str], Field(min_length=1)]
    """Columns whose texts, joined by a space, are the report."""


class Labels(Block):
    """A CSV of labels, one row a volume; every column but the key is a label."""

    path: Path
    key: str


class NpzSource(Block):
    """A folder of NPZ files, one volume a file, stored as given (int16 HU; depth, height, width)."""

    kind: Literal["npz"]
    path: Path
    array: str | None = None
    """Name of the array; without it the file's only 3D array."""
    scale: float | None = None
    """Factor that brings the stored numbers to HU, such as 1000 for files that hold HU / 1000."""
    fields: dict[str, str] = {}
    """Named regular expressions over the file's path; the first group is the field's value."""
    reports: Reports
    labels: Labels | None = None

    @model_validator(mode="after")
    def _expressions_have_a_group(self) -> Self:
        for name, pattern in self.fields.items():
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"fields.{name} is no regular expression: {error}") from None
            if groups < 1:
                raise ValueError(f"fields.{name} needs a group in parentheses, its first is the value")
        return self


Source = Annotated[TableSource | NpzSource, Field(discriminator="kind")]
