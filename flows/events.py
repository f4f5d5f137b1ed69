"""The events that Tarmac tells Prefect of, for automations to act on.

An event is told once the version is current; a server that does not take it decides nothing over the work.
"""

from __future__ import annotations

import os
from typing import Literal

from prefect.events import emit_event

from tasks.core.schema import Config
from tasks.dataset.building.result import BuildResult

REBUILT = "tarmac.dataset.rebuilt"
DATASET = "tarmac.dataset."
"""Before a config's name: the resource of its dataset."""


def rebuilt(config: Config, built: BuildResult, flow: Literal["build", "pipeline"]) -> None:
    """Tell that a rebuild has changed a dataset; nothing where the version is still the one before.

    The event's resource has the project's folder, that of the dataset and the flow that has built it, its
    payload the version, the version's folder and how many samples came, went and were replaced.
    """
    if built.version.name == built.previous:
        return
    emit_event(
        REBUILT,
        resource={
            "prefect.resource.id": f"{DATASET}{config.name}",
            "prefect.resource.name": config.name,
            "tarmac.folder": os.getcwd(),
            "tarmac.dataset": os.path.abspath(config.dataset.output),
            "tarmac.flow": flow,
        },
        payload={
            "version": built.version.name,
            "folder": os.path.abspath(built.version),
            "gained": built.gained,
            "lost": built.lost,
            "replaced": built.replaced,
        },
    )
