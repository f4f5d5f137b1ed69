"""The whole pipeline: raw files to a report of evaluated checkpoints."""

from __future__ import annotations

from flows import events
from flows.lifecycle import concerns, tarmac_flow
from flows.parameters import Overrides, TrainedConfigFile, configured
from flows.stages import Stages, go_on, make_dataset, train_on
from flows.starts import begun
from tasks import control
from tasks.supervision.beforehand import require_startable


@tarmac_flow("pipeline")
def pipeline(
    config: TrainedConfigFile,
    overrides: Overrides | None = None,
    fresh: bool = False,
    rehash: bool = False,
    accept_loss: bool = False,
) -> Stages:
    """Build, tune, train, evaluate, gather and report a config; what is up to date is left as it is.

    Args:
        config: The config file, from the project's folder.
        overrides: Values for this run only; what is left empty stays as the config says.
        fresh: Start anew; the run that is there moves to runs/archive.
        rehash: Compare the content of all raw files, not only their sizes and times.
        accept_loss: Take a version that has lost or replaced more than 5 % of the samples before.
    """
    if (run := begun()) is not None:
        return go_on(run, lambda: configured(config, overrides))
    settings = configured(config, overrides)
    concerns(settings)
    if control.deployed():  # else the command has asked
        require_startable(settings, None, fresh=fresh)
    version, prepared = make_dataset(settings, rehash=rehash, accept_loss=accept_loss)
    events.rebuilt(settings, prepared[0].details, "pipeline")
    return [*prepared, *train_on(settings, version, fresh=fresh)]
