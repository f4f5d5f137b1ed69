"""What the page shows: every section's values, or the sentence that stands in its place.

What cannot be read costs its own section and is named; without a manifest, faults are all that is left. A
private version is shown as counts and distributions: no sample of it is opened, and no key, caption, detail
or place is on the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.core.charts import BarLayout
from tasks.core.errors import DataError
from tasks.core.files import read_json
from tasks.core.screen import Progress, no_progress
from tasks.dataset import quarantine
from tasks.dataset.manifest import Manifest, read_manifest
from tasks.dataset.preview import columns, plots
from tasks.dataset.preview.checked import Checked, with_seen
from tasks.dataset.preview.choice import choose
from tasks.dataset.preview.codes import MEANINGS
from tasks.dataset.preview.columns import Column
from tasks.dataset.preview.faults import Faults, faults_of
from tasks.dataset.preview.faulty import faulty_tiles
from tasks.dataset.preview.legible import legible, without_folder
from tasks.dataset.preview.samples import SampleReader
from tasks.dataset.preview.tiles import SHOWN, Tile, tile
from tasks.dataset.preview.tokens import CONTEXT, TITLE, TOKENIZED, UNIT, CountTokens, read_tokens
from tasks.dataset.rejects import RejectGroup, count_groups, read_groups


@dataclass
class Content:
    """What the page shows, and the sentences about what it cannot."""

    manifest: Manifest | None
    private: str
    """Why nothing but counts is shown; empty when samples may be."""
    why_none: str = ""
    """Why there is no manifest, and with it nothing but faults."""
    gallery: dict[str, list[Tile]] = field(default_factory=dict)
    groups: Sequence[RejectGroup] = ()
    charts: list[BarLayout] = field(default_factory=list)
    rows: list[plots.Row] = field(default_factory=list)
    shard_charts: list[BarLayout] = field(default_factory=list)
    no_tokens: str = ""
    missing: list[str] = field(default_factory=list)
    checked: Checked | None = None
    faults: Faults | None = None
    """None when nobody has verified the version."""

    @property
    def tiles(self) -> list[Tile]:
        return [one for tiles in self.gallery.values() for one in tiles]


def gather(
    version: Path,
    count_tokens: CountTokens | None,
    progress: Progress = no_progress,
    checked: Checked | None = None,
) -> Content:
    """Everything on the page, read from the version's folder."""
    content = Content(None, _why_private(version), checked=checked)
    try:
        manifest = content.manifest = read_manifest(version)
    except DataError as error:
        content.why_none = f"Nothing is shown: {without_folder(error, version)}."
    else:
        _add_rejects(content, manifest, version)
        _add_numbers(content, manifest, version, progress)
        if not content.private:
            _add_gallery(content, manifest, version, progress)
            _add_tokens(content, manifest, version, count_tokens)
    _add_faults(content, version)
    return content


def built(version: Path) -> float | None:
    """When the version was built, in Unix seconds."""
    stated = _facts(version).get("built")
    return float(stated) if isinstance(stated, int | float) and 0 <= stated < 1e11 else None


def _add_gallery(content: Content, manifest: Manifest, version: Path, progress: Progress) -> None:
    modality = manifest.modality
    if modality not in SHOWN:
        named = legible(modality, 80)
        content.missing.append(f"Samples of modality {named} cannot be shown by this version of Tarmac.")
        return
    chosen = choose(_sizes(manifest), modality)
    total, done = sum(map(len, chosen.values())), 0
    for split, places in chosen.items():
        try:
            reader = SampleReader(version, split)
        except DataError as error:
            content.missing.append(f"No samples of {split} are shown: {without_folder(error, version)}.")
            continue
        content.gallery[split] = []
        for row in places:
            if row < len(reader):
                content.gallery[split].append(tile(reader, row, modality))
            done += 1
            progress(done, total, "samples")


def _add_faults(content: Content, version: Path) -> None:
    """The faults tab; what only the gallery showed belongs to the report from here on."""
    checked = content.checked
    if checked is None:
        return
    checked = content.checked = replace(checked, report=with_seen(checked.report, content.gallery))
    faults = content.faults = faults_of(checked, version, bool(content.private))
    dataset = quarantine.home(version)
    try:
        entries = quarantine.of_version(version, quarantine.read(dataset / quarantine.NAME))
    except DataError as error:
        faults.missing.append(f"What is in quarantine is not known: {without_folder(error, dataset)}.")
    else:
        faults.quarantined = Counter(one.reason if one.reason in MEANINGS else "other" for one in entries)
    modality = content.manifest.modality if content.manifest is not None else ""
    if content.manifest is None and not content.private:
        faults.missing.append(
            "Faulty samples are not shown: without the manifest their modality is not known."
        )
    if not content.private and modality in SHOWN:
        faults.tiles = faulty_tiles(version, checked.report.findings, modality)


def _add_rejects(content: Content, manifest: Manifest, version: Path) -> None:
    content.groups = count_groups(manifest.rejects)
    try:
        content.groups = read_groups(version, manifest.rejects, bool(content.private))
    except DataError as error:
        content.missing.append(f"No examples of rejects are shown: {error}.")


def _add_numbers(content: Content, manifest: Manifest, version: Path, progress: Progress) -> None:
    found: list[Column] = []
    try:
        found = columns.read_columns(version, _sizes(manifest), manifest.modality, progress)
    except DataError as error:
        content.missing.append(f"No distributions are shown: {error}.")
    content.rows = plots.rows(found)
    charts = [plots.histogram_chart(column.title, column.unit, column.all) for column in found]
    content.charts = [chart for chart in charts if chart is not None]
    try:
        content.shard_charts = plots.shard_charts(columns.read_shards(version))
    except DataError as error:
        content.missing.append(f"No shards are shown: {error}.")


def _add_tokens(
    content: Content, manifest: Manifest, version: Path, count_tokens: CountTokens | None
) -> None:
    """Tokens a caption, from a bounded number of captions."""
    if manifest.modality not in TOKENIZED or not manifest.accepted:
        return
    if count_tokens is None:
        content.no_tokens = "Tokens a caption are left out: no tokenizer was at hand (open_clip brings one)."
        return
    values = read_tokens(version, _sizes(manifest), count_tokens)
    content.rows += plots.rows([Column("tokens", TITLE, UNIT, {"a sample of all": values})])
    chart = plots.token_chart(TITLE, UNIT, values, CONTEXT)
    if chart is not None:
        content.charts.append(chart)


def _why_private(version: Path) -> str:
    """Why samples are not shown; empty only where the build stated that the data is not private."""
    stated = _facts(version).get("private")
    if stated is False:
        return ""
    if stated is True:
        return "The dataset is private (dataset.private): counts only. No sample was opened to be shown."
    return (
        "Whether the dataset is private is not known, because build.json does not say: counts only. "
        "Build the dataset again, and it will."
    )


def _facts(version: Path) -> dict[str, Any]:
    """What `build.json` holds; nothing where it cannot be read."""
    try:
        facts = read_json(version / "build.json")
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _sizes(manifest: Manifest) -> dict[str, int]:
    return {name: split.samples for name, split in manifest.splits.items()}
