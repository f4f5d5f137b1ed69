"""The arguments that several commands share: their types, and what `--help` says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from tasks.core.errors import UsageError

Level = Literal["quick", "default", "full"]
"""How closely a dataset is examined."""

AsJson = Annotated[bool, Parameter("--json", help="Print one JSON object instead of text.")]


def _require_pairs(_: Any, changes: list[str] | None) -> None:
    from tasks.core.config import require_pair  # here, because the help needs none of it

    for change in changes or ():
        require_pair(change)


Changes = Annotated[
    list[str] | None,
    Parameter(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the config for this call, as in --set train.lr=1e-4. May be repeated.",
        validator=_require_pairs,
    ),
]
ConfigFile = Annotated[Path, Parameter(help="The config file, such as configs/digits-clip.yaml.")]
DatasetFolder = Annotated[str, Parameter(help="The folder of a dataset, or of one of its versions.")]
Fresh = Annotated[bool, Parameter(help="Start anew. The run that is there moves to runs/archive.")]
Full = Annotated[bool, Parameter(help="Also decode and check every member of every sample.")]
Quick = Annotated[bool, Parameter(help="Compare sizes, end blocks, counts and the index only.")]
RunName = Annotated[str, Parameter(help="The folder of a run, or the start of its id or name.")]
RunsFolder = Annotated[Path, Parameter(help="Where the run folders lie (default: runs).")]


def level_of(quick: bool, full: bool) -> Level:
    """The level that `--quick` and `--full` ask for; UsageError for both."""
    if quick and full:
        raise UsageError("--quick, --full: choose one")
    return "quick" if quick else "full" if full else "default"
