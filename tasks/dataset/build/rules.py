"""The dataset block as workers anywhere need it: every path of its sources absolute."""

from __future__ import annotations

from typing import Any

from tasks.core.stores import absolute_location
from tasks.core.schema import Dataset


def rules_of(dataset: Dataset) -> Any:
    """JSON that validates as the same block, from any working directory."""
    block = dataset.model_dump(mode="json")
    for source in [block["source"]] if block["source"] else block["sources"]:
        source["path"] = absolute_location(source["path"])
        for joined in source.get("join", ()):
            joined["path"] = absolute_location(joined["path"])
    return block
