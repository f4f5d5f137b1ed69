"""The page: every section's values, or the sentence that stands in its place.

What cannot be read costs its own section and is named. A private version is shown as counts and
distributions: no sample of it is opened, and no key, caption, detail or place is on the page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tasks.core.bars import Drawing
from tasks.core.errors import DataError
from tasks.core.files import read_json, write_atomic
from tasks.core.pages import render
from tasks.core.progress import Progress, silent
from tasks.dataset.groups import COMPARED, Group, counts_only, read_groups
from tasks.dataset.look import columns, plots
from tasks.dataset.look.choice import choose, spread
from tasks.dataset.look.columns import Column
from tasks.dataset.look.histogram import Histogram
from tasks.dataset.look.samples import SampleReader
from tasks.dataset.look.tiles import SHOWN, Tile, tile
from tasks.dataset.manifest import Manifest, read_manifest

CountTokens = Callable[[str], int]
CONTEXT = 77
"""Tokens that CLIP's text encoder reads; the rest of a caption is cut off."""
CAPTIONS = 2000
"""Of them, spread evenly, tokens are counted."""
TOKENS = ("Tokens a caption", "tokens")
TOKENIZED = ("image_text", "reinforced")


@dataclass(frozen=True)
class Look:
    """What was written, and how many of the samples on it could not be shown whole."""

    path: Path
    shown: int
    faulty: int


@dataclass
class Content:
    """What the page shows, and the sentences about what it cannot."""

    manifest: Manifest
    private: str
    """Why nothing but counts is shown; empty when samples may be."""
    gallery: dict[str, list[Tile]] = field(default_factory=dict)
    groups: Sequence[Group] = ()
    charts: list[Drawing] = field(default_factory=list)
    rows: list[plots.Row] = field(default_factory=list)
    shard_charts: list[Drawing] = field(default_factory=list)
    no_tokens: str = ""
    missing: list[str] = field(default_factory=list)


def write_look(
    version: Path,
    out: Path,
    title_note: str = "",
    *,
    count_tokens: CountTokens | None = None,
    progress: Progress = silent,
) -> Look:
    """Write the page of a version to `out`; DataError without a manifest, OSError when it cannot be written.

    `title_note` stands under the name (such as `pilot: the first 50 samples`). `count_tokens` gives the
    tokens of a caption; without it they are left out, and the page says so.
    """
    content = gather(version, count_tokens, progress)
    tiles = [one for split in content.gallery.values() for one in split]
    text = render(
        "dataset/look.html",
        content=content,
        manifest=content.manifest,
        version=_name(version),
        note=title_note,
        built=_built(version),
        sampled=COMPARED,
        shares=[name for name, _ in plots.SHARES],
        written=time.time(),
    )
    write_atomic(out, text)
    return Look(out, len(tiles), sum(bool(one.faults) for one in tiles))


def gather(version: Path, count_tokens: CountTokens | None, progress: Progress = silent) -> Content:
    """Everything on the page, read from the version's folder."""
    manifest = read_manifest(version)
    content = Content(manifest, _why_private(version))
    _add_rejects(content, version)
    _add_numbers(content, version, progress)
    if not content.private:
        _add_gallery(content, version, progress)
        _add_tokens(content, version, count_tokens)
    return content


def _add_gallery(content: Content, version: Path, progress: Progress) -> None:
    modality = content.manifest.modality
    if modality not in SHOWN:
        content.missing.append(f"Samples of modality {modality} cannot be shown by this version of Tarmac.")
        return
    chosen = choose(_sizes(content.manifest), modality)
    total, done = sum(map(len, chosen.values())), 0
    for split, places in chosen.items():
        try:
            reader = SampleReader(version, split)
        except DataError as error:
            content.missing.append(f"No samples of {split} are shown: {_plain(error, version)}.")
            continue
        content.gallery[split] = []
        for row in places:
            if row < len(reader):
                content.gallery[split].append(tile(reader, row, modality))
            done += 1
            progress(done, total, "samples")


def _add_rejects(content: Content, version: Path) -> None:
    counts = content.manifest.rejects
    content.groups = counts_only(counts)
    if content.private or not content.groups:
        return
    try:
        content.groups = read_groups(version, counts)
    except DataError as error:
        content.missing.append(f"No examples of rejects are shown: {error}.")


def _add_numbers(content: Content, version: Path, progress: Progress) -> None:
    found: list[Column] = []
    try:
        found = columns.read_columns(version, _sizes(content.manifest), content.manifest.modality, progress)
    except DataError as error:
        content.missing.append(f"No distributions are shown: {error}.")
    content.rows = plots.rows(found)
    charts = [plots.histogram_chart(column.title, column.unit, column.all) for column in found]
    content.charts = [chart for chart in charts if chart is not None]
    try:
        content.shard_charts = plots.shard_charts(columns.read_shards(version))
    except DataError as error:
        content.missing.append(f"No shards are shown: {error}.")


def _add_tokens(content: Content, version: Path, count_tokens: CountTokens | None) -> None:
    """Tokens a caption, from a bounded number of captions."""
    if content.manifest.modality not in TOKENIZED or not content.manifest.accepted:
        return
    if count_tokens is None:
        content.no_tokens = "Tokens a caption are left out: no tokenizer was at hand (open_clip brings one)."
        return
    values = _tokens(content.manifest, version, count_tokens)
    content.rows += plots.rows([Column("tokens", *TOKENS, {"a sample of all": values})])
    chart = plots.token_chart(*TOKENS, values, CONTEXT)
    if chart is not None:
        content.charts.append(chart)


def _tokens(manifest: Manifest, version: Path, count_tokens: CountTokens) -> Histogram:
    """Of captions spread evenly over all splits; a caption that cannot be read is left out."""
    values = Histogram()
    for split, samples in _sizes(manifest).items():
        share = max(1, CAPTIONS * samples // manifest.accepted)
        try:
            reader = SampleReader(version, split)
        except DataError:
            continue  # the gallery says so
        captions = (reader.read_text(row) for row in spread(min(samples, len(reader)), share))
        values.add(np.array([count_tokens(text) for text in captions if text is not None]))
    return values


def _why_private(version: Path) -> str:
    """Why samples are not shown; empty only where the build stated that the data is not private."""
    try:
        stated = read_json(version / "build.json").get("private")
    except (OSError, ValueError, AttributeError):
        stated = None
    if stated is False:
        return ""
    if stated is True:
        return "The dataset is private (dataset.private): counts only. No sample was opened for this page."
    return (
        "Whether the dataset is private is not known, because build.json does not say: counts only. "
        "Build the dataset again, and it will."
    )


def _built(version: Path) -> float | None:
    try:
        built = read_json(version / "build.json").get("built")
    except (OSError, ValueError, AttributeError):
        return None
    return float(built) if isinstance(built, int | float) and 0 <= built < 1e11 else None


def _sizes(manifest: Manifest) -> dict[str, int]:
    return {name: split.samples for name, split in manifest.splits.items()}


def _name(version: Path) -> str:
    return version.resolve().name


def _plain(error: DataError, version: Path) -> str:
    """The error without the folder's path, which the page does not show."""
    return str(error).replace(f"{version}/", "").rstrip(".")
