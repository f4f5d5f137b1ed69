"""What of a version depends on time and place: build.json."""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

from tasks.core.schema import Config
from tasks.dataset.build.catalogue import Catalogue
from tasks.dataset.build.fingerprint import CONVERTER, packages
from tasks.dataset.build.kept import kept


def facts(config: Config, catalogue: Catalogue) -> dict[str, Any]:
    """`inputs_digest` tells whether there is anything to do, `unread` how many samples are to be tried again
    at the next build. `name`, `dataset`, `cut` (keys of addresses that are kept only in part), `filtered` and
    `converter` are what a repair needs."""
    dataset, cut = kept(config.dataset)
    return {
        "name": config.name,
        "dataset": dataset,
        "cut": cut,
        "inputs_digest": catalogue.fact("inputs"),
        "unread": catalogue.fact("unread"),
        "filtered": catalogue.filtered,
        "private": config.dataset.private,
        "built": time.time(),
        "host": socket.gethostname(),
        "engine": config.engine.build.model_dump(mode="json"),
        "python": sys.version.split()[0],
        "versions": packages(config.dataset.modality),
        "converter": CONVERTER,
        "output": str(config.dataset.output),
    }
