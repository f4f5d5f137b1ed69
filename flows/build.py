"""Raw data to a verified version of the dataset."""

from __future__ import annotations

from flows import events
from flows.lifecycle import concerns, tarmac_flow
from flows.parameters import ConfigFile, Overrides, configured
from flows.stages import Stages, make_dataset


@tarmac_flow("build")
def build_flow(
    config: ConfigFile,
    overrides: Overrides | None = None,
    rehash: bool = False,
    accept_loss: bool = False,
    wait: bool = True,
) -> Stages:
    """Build the dataset of a config; what is up to date is left as it is.

    Args:
        config: The config file, from the project's folder.
        overrides: Values for this run only; what is left empty stays as the config says.
        rehash: Compare the content of all raw files, not only their sizes and times.
        accept_loss: Take a version that has lost or replaced more than 5 % of the samples before.
        wait: Wait while somebody else builds this dataset; otherwise fail.
    """
    settings = configured(config, overrides)
    concerns(settings)
    _, stages = make_dataset(settings, rehash=rehash, accept_loss=accept_loss, waits=wait)
    events.rebuilt(settings, stages[0].details, "build")
    return stages
