"""Account for every raw sample of a run's datasets: the counts of the manifest, and the rejects by reason.

A version may have been pruned or moved since the run; then the account contains the reason instead of
failing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.core.errors import DataError, TarmacError, first_line
from tasks.dataset.version.manifest import Manifest, read_manifest
from tasks.dataset.version.quarantine import Quarantined, left_out_text
from tasks.dataset.version.rejects import RejectGroup, count_groups, read_groups
from tasks.models.held_out import held_out
from tasks.runs.data import version_path
from tasks.runs.identity import DataRef


@dataclass(frozen=True)
class Account:
    """One dataset of a run. `manifest` is None when the version cannot be read; `why_none` is the reason.

    `left_out` describes the samples that the run left out from its start; it is empty where there are none.
    """

    name: str
    version: str
    path: Path
    manifest: Manifest | None = None
    rejects: Sequence[RejectGroup] = ()
    left_out: str = ""
    why_none: str = ""
    why_no_examples: str = ""

    @property
    def held_out(self) -> str | None:
        """The split that is not trained on; None where there is none, or several."""
        return held_out(self.manifest.splits) if self.manifest else None


def read_account(ref: DataRef, private: bool, quarantined: Iterable[Quarantined] = ()) -> Account:
    """Read the account of one dataset of a run that left out the `quarantined` samples, with examples of
    rejects unless it is private."""
    path = version_path(ref)
    mine = [entry for entry in quarantined if entry.version == ref.version]
    name = Path(ref.dataset).name
    try:
        manifest = read_manifest(path)
    except TarmacError as error:
        why = f"Version {ref.version} cannot be read: {first_line(error)}"
        return Account(name, ref.version, path, left_out=left_out_text({}, mine), why_none=why)
    rejects, why_no_examples = count_groups(manifest.rejects), ""
    if rejects:
        try:
            rejects = read_groups(path, manifest.rejects, private)
        except DataError as error:
            why_no_examples = str(error).replace(f"{path}/", "")  # pages are shared
    left_out = left_out_text(manifest.splits, mine)
    return Account(name, ref.version, path, manifest, rejects, left_out, why_no_examples=why_no_examples)
