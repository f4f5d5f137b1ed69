"""What to do about faults: the commands, in the order in which to try them."""

from __future__ import annotations

from collections.abc import Sequence

Step = tuple[str, str]
"""A command, and what it does."""


def steps(dataset: str, is_built: bool, needs_full: bool) -> Sequence[Step]:
    """For a dataset as the user calls it. Tars that Tarmac did not build have no source to be repaired from.

    `needs_full` when only decoding shows what is wrong.
    """
    if not is_built:
        return (
            (
                f"tarmac init {dataset}",
                "writes a config that builds a dataset of what is sound in these tars.",
            ),
            (f"tarmac verify {dataset} --full", "names each faulty sample, decoded too."),
        )
    full = " --full" if needs_full else ""
    return (
        (
            f"tarmac repair {dataset}{full}",
            "makes what is damaged again, to the same bytes, from its source or from another version; what "
            "is sound stays as it is.",
        ),
        (
            f"tarmac repair {dataset}{full} --quarantine",
            "where samples stay bad, because the source is gone or is no better: training skips them.",
        ),
        (
            f"tarmac versions {dataset}",
            "lists earlier versions; one that is sound can be made current again (rollback).",
        ),
        (f"tarmac verify {dataset} --full", "says afterwards whether all is well."),
    )
