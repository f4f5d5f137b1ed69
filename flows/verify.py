"""The flow that checks a dataset for damage: `tarmac verify` for a person who looks at a page."""

from __future__ import annotations

from flows.lifecycle import looks_at, tarmac_flow
from flows.parameters import Named
from flows.stages import Stages
from tasks.dataset.verify.verifier import Level
from tasks.verify import examine


@tarmac_flow("verify")
def verify_flow(dataset: Named, level: Level = "default", again: bool = True) -> Stages:
    """Check a dataset, or anybody's WebDataset tars, for damage; it fails when they are not sound.

    Args:
        dataset: The folder of a dataset, a version or tars; a pattern such as tars/{00..41}.tar; or s3://.
        level: quick compares sizes, counts and the index; default every byte; full also decodes every member.
        again: Also look at what was found sound before at this level and not written since.
    """
    looks_at(dataset)
    return [examine(dataset, level, again)]
