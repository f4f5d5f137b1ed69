"""The flow of the whole pipeline, from raw files to a report of evaluated checkpoints."""

from __future__ import annotations

from flows.lifecycle import concerns, tarmac_flow
from flows.parameters import Overrides, TrainedConfigFile, configured
from flows.stages import Stages, go_on, make_dataset, require_sound, train_on
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
    """Build, tune, train, evaluate, gather and report a config; what is up to date stays as it is.

    Args:
        config: The config file, from the project's folder.
        overrides: Values for this run only; a field that is left empty keeps the config's value.
        fresh: Start anew; the present run moves to runs/archive.
        rehash: Compare the content of all raw files, not only their sizes and times.
        accept_loss: Publish a version that has lost or replaced more than 5 % of the previous samples.
    """
    if (run := begun()) is not None:
        return go_on(run, lambda: configured(config, overrides))
    settings = configured(config, overrides)
    concerns(settings)
    if control.deployed():  # otherwise the command has checked this already
        require_startable(settings, None, fresh=fresh)
    version, prepared = make_dataset(settings, "pipeline", rehash=rehash, accept_loss=accept_loss)
    require_sound(prepared)
    return [*prepared, *train_on(settings, version, fresh=fresh)]
