"""The base class of all config blocks, and the types of durations, sizes and locations."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from tasks.core.stores import REMOTE_SCHEMES
from tasks.core.units import parse_duration, parse_size

_HUB = re.compile(r"hf://datasets/[^/@]+/[^/@]+")

Duration = Annotated[
    int,
    BeforeValidator(parse_duration, json_schema_input_type=Annotated[str, Field(examples=["90s", "48h"])]),
    PlainSerializer(lambda s: f"{s}s"),
]
"""Seconds; written with a unit, such as `90s` or `48h`."""

Size = Annotated[
    int,
    BeforeValidator(parse_size, json_schema_input_type=Annotated[str, Field(examples=["256MB", "2GB"])]),
    PlainSerializer(lambda b: f"{b}B"),
]
"""Bytes; written with a unit, such as `256MB`."""


def _location(value: str) -> str:
    scheme, mark, _ = value.partition("://")
    if mark and scheme not in REMOTE_SCHEMES:
        raise ValueError(f"{scheme}:// is not supported; use a path or {', '.join(REMOTE_SCHEMES)}")
    if scheme == "hf" and mark and not _HUB.match(value):
        raise ValueError(
            f"{value}: an address of the hub is hf://datasets/OWNER/NAME, with @REVISION or without"
        )
    if not value.strip() or value.startswith("pipe:"):
        raise ValueError("needs a path or an address")
    return os.path.expanduser(value)


def _folder(value: Any) -> Any:
    if isinstance(value, str) and not value.strip():
        raise ValueError("needs a folder; `.` is the working directory")
    return os.path.expanduser(value) if isinstance(value, str) else value


Location = Annotated[str, Field(min_length=1), AfterValidator(_location)]
"""A path on this machine, or an address such as `s3://bucket/folder`; never a command."""

Folder = Annotated[Path, BeforeValidator(_folder, json_schema_input_type=str)]
"""A folder of this machine; `~` is the user's home."""

Share = Annotated[float, Field(ge=0, lt=1)]
Auto = Annotated[int, Field(ge=0)] | Literal["auto"]


class Block(BaseModel):
    """A block of the config: immutable, and an unknown key in it is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
