"""Measures loader settings for a run and keeps the chosen ones in its folder."""

from __future__ import annotations

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.core import child
from tasks.core.lock import Held, Lease
from tasks.core.schema import Config, Loader
from tasks.core.units import counted
from tasks.loader.settings import LoaderSettings, read_settings, write_settings
from tasks.runs.folder import RunFolder
from tasks.stage import Shown, StageResult, is_transient, shown

LOOK_AGAIN_S = 5.0


@task(name="tune", retries=1, retry_condition_fn=is_transient, cache_policy=NO_CACHE)
def tune(config: Config, version: Path, run: RunFolder) -> StageResult:
    """Settings that are there and fit the config stay; a run at work keeps the ones it started with.

    Where somebody else is measuring, this waits for what comes of it.
    """
    with shown("tune") as stage:
        if kept := _kept(config, run):
            return stage.result(kept)
        lease = Lease(run.lease)
        held = _wait(lease, run, stage)
        if held is not None:
            return stage.result(_kept(config, run) or f"left alone: {held}")
        try:
            if kept := _kept(config, run):
                return stage.result(kept)
            arguments = {
                "config": config.model_dump(mode="json"),
                "version": str(version),
                "quarantine": str(run.quarantine),
            }
            measured = child.call("tasks.diagnosis.bench:tune", arguments, stage.progress)
            settings = LoaderSettings.model_validate(measured)
            write_settings(run.loader, settings)
        finally:
            lease.release()
        return stage.result(_summary(settings), **measured)


def _wait(lease: Lease, run: RunFolder, stage: Shown) -> Held | None:
    """Take the lease; or whoever holds it, once there are settings."""
    while True:
        try:
            lease.wait(0 if run.loader.exists() else LOOK_AGAIN_S)
            return None
        except Held as held:
            if run.loader.exists():
                return held
            stage.progress(0, 0, f"waiting: {held}")


def _kept(config: Config, run: RunFolder) -> str | None:
    """What is told of settings that are there and fit the config."""
    kept = read_settings(run.loader) if run.loader.exists() else None
    return f"kept: {_summary(kept)}" if kept is not None and _fits(kept, config.loader) else None


def _fits(kept: LoaderSettings, asked: Loader) -> bool:
    """Whether the numbers that the config gives, if any, are the kept ones."""
    return asked.workers in ("auto", kept.workers) and asked.prefetch in ("auto", kept.prefetch)


def _summary(settings: LoaderSettings) -> str:
    """`2 workers: 3,410 samples/s (0 workers: 1,920)`; the reason where nothing was measured."""
    rates = {one.workers: f"{one.samples_per_s:,.0f}" for one in settings.measurements}
    if settings.workers not in rates:
        return settings.reason
    chosen = f"{counted(settings.workers, 'worker')}: {rates.pop(settings.workers)} samples/s"
    others = ", ".join(f"{counted(workers, 'worker')}: {rate}" for workers, rate in rates.items())
    return f"{chosen} ({others})" if others else chosen
