"""The agent's first phase: loader settings, measured on the machine and the GPU that the training will have.

torch is in a child process, which ends with the agent. What is there and fits the config stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tasks.core import child
from tasks.core.child import Killed
from tasks.core.errors import first_line
from tasks.core.schema import Config, Loader
from tasks.core.screen import Progress, no_progress
from tasks.loader.settings import LoaderSettings, read_settings, write_settings
from tasks.models.recipes import levers, options_type
from tasks.runs import record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder

MEASURE = "tasks.diagnosis.bench:tune"
LENGTHS = "tasks.training.loop:measure_lengths"
TRIES = 2
logger = logging.getLogger(__name__)


def kept(run: RunFolder, asked: Loader) -> LoaderSettings | None:
    """The run's settings, where they have the numbers that the config gives, if it gives any."""
    found = read_settings(run.loader) if run.loader.exists() else None
    if found is None or asked.workers not in ("auto", found.workers):
        return None
    return found if asked.prefetch in ("auto", found.prefetch) else None


def tune(
    run: RunFolder, config: Config, on_idle: Callable[[], None], on_progress: Progress = no_progress
) -> None:
    """Write down how long samples are, where they are packed, and the run's loader settings, unless what is
    there fits.

    What `on_idle` raises, at least once a second, ends the measuring. DataError for data that cannot be read.
    """
    if config.train is not None and config.train.pack is not None:
        _measure_lengths(run, config, on_idle, on_progress)
    if kept(run, config.loader) is not None:
        return
    if config.train is not None and options_type(config.train.recipe).is_external:
        settings = left_to_trainer(config.loader)
    else:
        logger.info("measuring loader settings")
        settings = LoaderSettings.model_validate(_measure(run, config, on_idle, TRIES))
    write_settings(run.loader, settings)
    logger.info("loader settings: %s", settings.reason)


def _measure_lengths(
    run: RunFolder, config: Config, on_idle: Callable[[], None], on_progress: Progress
) -> None:
    from tasks.loader.packing.lengths import are_there  # late, for it brings numpy into the agent

    if not are_there(run.lengths, len(record.load_record(run).data)):
        logger.info("measuring how long samples are")
        private = config.dataset.private
        child.call(LENGTHS, {"run": str(run.path)}, on_progress, private, on_idle)


def left_to_trainer(asked: Loader) -> LoaderSettings:
    """Another trainer reads by loaders of its own, of which the config gives the number of workers alone."""
    workers = 1 if asked.workers == "auto" else asked.workers
    prefetch = 1 if asked.prefetch == "auto" else asked.prefetch
    reason = "the trainer reads by loaders of its own"
    return LoaderSettings(workers=workers, prefetch=prefetch, reason=reason)


def _measure(run: RunFolder, config: Config, on_idle: Callable[[], None], tries: int) -> object:
    arguments = {
        "config": config.model_dump(mode="json"),
        "version": str(version_path(record.load_record(run).data[0])),
        "quarantine": str(run.quarantine),
        "lengths": str(run.lengths),
    }
    try:
        return child.call(MEASURE, arguments, is_private=config.dataset.private, on_idle=on_idle)
    except Killed as killed:
        if tries == 1 and config.train is not None:
            hint = f"if the kernel did it because memory was short (dmesg), lower {levers(config.train)}"
            raise Killed(f"{killed}\n  {hint}") from None
        logger.warning("%s; again", first_line(killed))
        return _measure(run, config, on_idle, tries - 1)
