"""The command `export`: a checkpoint as a folder of another library, with the proof that it says the same."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

from cyclopts import Parameter

from flows.commands.arguments import AsJson, RunsFolder
from flows.commands.output import print_result, say
from tasks.core import screen
from tasks.core.errors import UsageError
from tasks.core.units import near
from tasks.export import Target

if TYPE_CHECKING:
    from tasks.export.run import Export


def export(
    checkpoint: Annotated[
        str, Parameter(help="A checkpoint's folder, or a run, whose best checkpoint it is then.")
    ],
    /,
    *,
    to: Annotated[Target | None, Parameter(help="The library that is to load it.")] = None,
    out: Annotated[
        Path | None, Parameter(help="The folder to write (default: exports/RUN-step_N-LIBRARY).")
    ] = None,
    python: Annotated[
        str, Parameter(help="The interpreter of an environment with the library, if not Tarmac's own.")
    ] = sys.executable,
    source: Annotated[Path | None, Parameter(help="For nanovlm: the folder of nanoVLM's sources.")] = None,
    runs: RunsFolder = Path("runs"),
    as_json: AsJson = False,
) -> int:
    """Write a checkpoint as a folder that another library loads, and prove it equal.

    The other library loads the folder in a process of its own and is asked the
    same as Tarmac's model; the largest difference is printed, and kept in
    the folder's export.json. What is not equal is not exported.

    For example:
      tarmac export 2e94 --to open_clip
      tarmac export 1f3b --to nanovlm --source ../nanoVLM
    """
    if to is None:
        raise UsageError(f"tarmac export: say for which library: --to {', '.join(get_args(Target))}")
    from tasks.export import run

    began = time.monotonic()
    with screen.running("export"):
        made = run.export(checkpoint, runs, to, out, python, source)
    seconds = time.monotonic() - began
    if as_json:
        return print_result(path=str(made.path), up_to_date=not made.is_new, **made.record)
    summary = f"{made.record['run']}, step {made.record['step']:,}: {made.record['covers']}"
    screen.finished("export", summary if made.is_new else f"up to date: {summary}", seconds)
    return say("\n".join(_lines(made)))


def _lines(made: Export) -> Iterator[str]:
    proof = made.record["proof"]
    yield f"Equal in {proof['library']}, {proof['arithmetic']}; the largest differences:"
    for name, value in proof["largest_difference"].items():
        yield f"  {name:<16} {value:.1e}" if value else f"  {name:<16} none"
    yield f"  folder  {near(made.path)}"
    yield f"  load    {made.record['usage']}"
