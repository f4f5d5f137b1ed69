"""Raw data to a verified version of the dataset."""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.parameters import Overrides, configured
from tasks.build import build, publish
from tasks.stage import StageResult
from tasks.verify import verify


@flow(name="build", result_serializer="json")
def build_flow(
    config: Path,
    overrides: Overrides | None = None,
    rehash: bool = False,
    accept_loss: bool = False,
    wait: bool = True,
) -> list[StageResult]:
    """Build the dataset of a config; what is up to date is left as it is.

    Args:
        config: The config file, from the project's folder.
        overrides: Values for this run only; what is left empty stays as the config says.
        rehash: Compare the content of all raw files, not only their sizes and times.
        accept_loss: Take a version that has lost more than 5 % of the samples before.
        wait: Wait while somebody else builds this dataset; otherwise fail.
    """
    plan = configured(config, overrides)
    built = build(plan, rehash=rehash, accept_loss=accept_loss, waits=wait)
    version = Path(built["details"]["version"])
    return [built, verify(plan, version), publish(plan, version)]
