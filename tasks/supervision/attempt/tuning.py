"""The agent's first phase: loader settings, measured on the machine and the GPU that the training will have.

torch runs in a child process, which ends with the agent. Settings that are there and fit the config are kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict

from tasks.core import child
from tasks.core.child import Killed
from tasks.core.errors import TarmacError, first_line
from tasks.core.files import write_json
from tasks.core.schema import Config, Loader
from tasks.core.screen import Progress, no_progress
from tasks.loader.settings import LoaderSettings, read_settings, write_settings
from tasks.models.recipes import levers, options_type
from tasks.runs import record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tasks.runs.footprint import footprint_of
from tasks.runs.gpus import trains_on_gpus

MEASURE = "tasks.diagnosis.bench:tune"
LENGTHS = "tasks.training.loop:measure_lengths"
logger = logging.getLogger(__name__)


def kept(run: RunFolder, asked: Loader) -> LoaderSettings | None:
    """Return the run's settings, where they have the numbers that the config gives, if it gives any."""
    found = read_settings(run.loader) if run.loader.exists() else None
    if found is None or asked.workers not in ("auto", found.workers):
        return None
    return found if asked.prefetch in ("auto", found.prefetch) else None


def prepare(
    run: RunFolder, config: Config, on_idle: Callable[[], None], on_progress: Progress = no_progress
) -> None:
    """Record what needs no GPU, unless it is there: how long samples are, where they are packed, and what a
    rank takes of its GPU.

    An error that `on_idle` raises, at least once a second, ends the measurement. DataError for data that
    cannot be read.
    """
    train, private = config.train, config.dataset.private
    if train is not None and train.pack is not None:
        from tasks.loader.packing.lengths import are_there  # late, for it brings numpy into the agent

        if not are_there(run.lengths, len(record.load_record(run).data)):
            logger.info("measuring how long samples are")
            child.call(LENGTHS, {"run": str(run.path)}, on_progress, private, on_idle)
    if train is not None and trains_on_gpus(config.engine.train):
        _compute_footprint(run, config)


def tune(run: RunFolder, config: Config, on_idle: Callable[[], None]) -> None:
    """Record the run's loader settings, unless they are there and fit; as `prepare` otherwise."""
    train = config.train
    if kept(run, config.loader) is not None:
        return
    if train is not None and options_type(train.recipe).is_external:
        settings = left_to_trainer(config.loader)
    else:
        logger.info("measuring loader settings")
        settings = LoaderSettings.model_validate(_measure(run, config, on_idle))
    write_settings(run.loader, settings)
    logger.info("loader settings: %s", settings.reason)


def _compute_footprint(run: RunFolder, config: Config) -> None:
    """Leave what a rank takes and computes in the run's folder; a training does without it."""
    assert config.train is not None
    if run.footprint.exists() or options_type(config.train.recipe).is_external:
        return
    try:
        write_json(run.footprint, asdict(footprint_of(config, asks_hub=True)))
    except TarmacError as error:
        logger.warning("what a rank takes of its GPU is not known: %s", first_line(error))


def left_to_trainer(asked: Loader) -> LoaderSettings:
    """Return settings for another trainer, which has loaders of its own: the config gives only their
    number."""
    return LoaderSettings(
        workers=1 if asked.workers == "auto" else asked.workers,
        prefetch=1 if asked.prefetch == "auto" else asked.prefetch,
        reason="the trainer reads by loaders of its own",
    )


def _measure(run: RunFolder, config: Config, on_idle: Callable[[], None], is_again: bool = False) -> object:
    arguments = {
        "config": config.model_dump(mode="json"),
        "version": str(version_path(record.load_record(run).data[0])),
        "quarantine": str(run.quarantine),
        "lengths": str(run.lengths),
    }
    try:
        return child.call(MEASURE, arguments, is_private=config.dataset.private, on_idle=on_idle)
    except Killed as killed:
        if is_again and config.train is not None:
            hint = f"if the kernel did it because memory was short (dmesg), lower {levers(config.train)}"
            raise Killed(f"{killed}\n  {hint}") from None
        logger.warning("%s; again", first_line(killed))
        return _measure(run, config, on_idle, is_again=True)
