"""Maps an idempotent function over groups of work on the configured engine: this machine, Slurm or Dask.

The function writes its result to a file system that all workers share and returns a small summary. So work
that was lost with its worker is done again, and a result that arrives twice counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tasks.core.engines.local import map_here
from tasks.core.errors import UsageError

if TYPE_CHECKING:  # a map on this machine does not need the config's models
    from tasks.core.schema.engine import Engines

Item = TypeVar("Item")
Result = TypeVar("Result")


def _no_message(text: str) -> None:
    """A `say` that shows nothing."""


def map_groups(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    engines: Engines,
    *,
    folder: Path,
    say: Callable[[str], None] = _no_message,
) -> Generator[Result, None, None]:
    """Yield `function(item)` for every item, in order of completion, on the engine of `engine.build`.

    `function`, items and results are pickled, so the function is defined in a module, or is a
    `functools.partial` of such a function. `items` are never all in memory: this machine and Dask take a few
    ahead of the workers, and Slurm writes them to `folder` first. `folder` must be on a file system that
    every worker sees; the job logs are written there, and the caller removes it. `say` is called with status
    lines for the user, such as `waiting in the queue: 4 jobs (Resources)`.

    An error of `function` is raised here and ends the map, and so does closing this generator: Slurm's jobs
    are cancelled, and running work elsewhere is finished. Raises TarmacError if work has lost its worker
    three times or the cluster does not answer, and UsageError if the engine cannot be used as configured.
    """
    settings = engines.for_build()
    folder = folder.absolute()
    if settings.kind == "slurm":
        from tasks.core.engines.slurm import map_on_slurm

        return map_on_slurm(function, items, settings, folder, say)
    if settings.kind == "dask":
        try:
            from tasks.core.engines.dask import map_on_dask
        except ModuleNotFoundError as error:
            raise UsageError(
                f"engine.build.kind: dask needs the package {error.name}; pip install 'tarmac[dask]'"
            ) from None
        assert settings.address is not None
        return map_on_dask(function, items, settings.address, folder, say)
    assert settings.workers is not None
    return map_here(function, items, settings.workers)
