"""The flow from raw data to a verified version of the dataset."""

from __future__ import annotations

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
    """Build the dataset of a config; what is up to date stays as it is.

    Args:
        config: The config file, from the project's folder.
        overrides: Values for this run only; a field that is left empty keeps the config's value.
        rehash: Compare the content of all raw files, not only their sizes and times.
        accept_loss: Publish a version that has lost or replaced more than 5 % of the previous samples.
        wait: Wait while somebody else builds this dataset; otherwise fail.
    """
    settings = configured(config, overrides)
    concerns(settings)
    return make_dataset(settings, "build", rehash=rehash, accept_loss=accept_loss, waits=wait)[1]
