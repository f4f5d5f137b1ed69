"""Writes the page of a version."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from tasks.core.files import write_atomic
from tasks.core.findings import Report
from tasks.core.pages import render
from tasks.core.screen import Progress, no_progress
from tasks.dataset.preview import plots
from tasks.dataset.preview.checked import Checked, next_steps
from tasks.dataset.preview.content import built, gather
from tasks.dataset.preview.tokens import CountTokens


@dataclass(frozen=True)
class Look:
    """What was written, and how many of the samples on it could not be shown whole.

    `report` is what verify said and what looking added to it, None when nobody verified; `next` is the
    command that helps against its faults, empty when there are none.
    """

    path: Path
    shown: int
    faulty: int
    report: Report | None
    next: str = ""


def write_look(
    version: Path,
    out: Path,
    title_note: str = "",
    *,
    count_tokens: CountTokens | None = None,
    progress: Progress = no_progress,
    checked: Checked | None = None,
) -> Look:
    """Write the page of a version to `out`; OSError when it cannot be written.

    `title_note` stands under the name (such as `pilot: the first 50 samples`). `count_tokens` gives the
    tokens of a caption; without it they are left out, and the page says so. `checked` is what verify said:
    without it there is no tab of faults.
    """
    content = gather(version, count_tokens, progress, checked)
    text = render(
        "dataset/look.html",
        content=content,
        manifest=content.manifest,
        faults=content.faults,
        name=content.manifest.name if content.manifest else _dataset(version),
        version=version.resolve().name,
        note=title_note,
        built=built(version),
        shares=[name for name, _ in plots.SHARES],
        written=time.time(),
    )
    write_atomic(out, text)
    made = Look(out, len(content.tiles), sum(bool(one.faults) for one in content.tiles), None)
    if content.checked is None:
        return made
    steps = next_steps(content.checked, version)
    return replace(made, report=content.checked.report, next=steps[0][0] if steps else "")


def _dataset(version: Path) -> str:
    """What the folder is called: the dataset's, or the version's own where it lies alone."""
    version = version.resolve()
    return version.parent.parent.name if version.parent.name == "versions" else version.name
