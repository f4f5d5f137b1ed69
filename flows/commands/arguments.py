"""The arguments that several commands share: their types, and their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from tasks.core.errors import UsageError

Level = Literal["quick", "default", "full"]
"""How thoroughly a dataset is checked."""

AsJson = Annotated[bool, Parameter("--json", help="Print one JSON object instead of text.")]


def _require_pairs(_: Any, changes: list[str] | None) -> None:
    from tasks.core.config import require_pair  # which the help does not need

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
Fresh = Annotated[bool, Parameter(help="Start anew. The present run moves to runs/archive.")]
Full = Annotated[bool, Parameter(help="Also decode and check every member of every sample.")]
Quick = Annotated[bool, Parameter(help="Compare only sizes, end blocks, counts and the index.")]
RunName = Annotated[str, Parameter(help="The folder of a run, or the beginning of its id or name.")]
RunsFolder = Annotated[Path, Parameter(help="The folder of the run folders (default: runs).")]
RUNS = Path("runs")
"""The folder of runs unless another one is given; before the first run it does not exist."""


def level_of(quick: bool, full: bool) -> Level:
    """Return the level that `--quick` and `--full` select; UsageError for both."""
    if quick and full:
        raise UsageError("--quick, --full: choose one")
    return "quick" if quick else "full" if full else "default"
