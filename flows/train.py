"""The flow that trains and evaluates on a dataset that is built."""

from __future__ import annotations

from pathlib import Path

from flows.lifecycle import concerns, tarmac_flow
from flows.parameters import Overrides, configured
from flows.stages import Stages, go_on, train_on
from flows.starts import begun
from tasks.dataset.version.versions import resolve


@tarmac_flow("train")
def train_flow(config: Path, overrides: Overrides | None = None, fresh: bool = False) -> Stages:
    """Tune, train, evaluate, gather and report a config on its dataset's current version.

    Args:
        config: The config file, from the project's folder.
        overrides: Values for this run only; a field that is left empty keeps the config's value.
        fresh: Start anew; the present run moves to runs/archive.
    """
    if (run := begun()) is not None:
        return go_on(run, lambda: configured(config, overrides))
    settings = configured(config, overrides)
    concerns(settings)
    return train_on(settings, resolve(settings.dataset.output), fresh=fresh)
