"""Gathers what the page of a version shows, section by section, and writes it.

A file that cannot be read costs only its own section and is named; without a manifest only faults are shown.
A private version is shown as counts and distributions: no sample is opened, and no key, caption or place is
on the page.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.core.charts import BarLayout
from tasks.core.errors import DataError, UsageError
from tasks.core.files import unreadable_as_error, write_atomic
from tasks.core.findings import Finding
from tasks.core.pages import render
from tasks.core.quarantine_file import home
from tasks.core.schema.dataset import Dataset
from tasks.core.screen import Progress, no_progress
from tasks.dataset.preview import numbers
from tasks.dataset.preview.faults import Checked, Faults, commands, faults_of, faulty_tiles, is_built
from tasks.dataset.preview.likeness_map import MODALITIES as MAPPED
from tasks.dataset.preview.likeness_map import LikenessMap, likeness_map
from tasks.dataset.preview.quality_tab import Exhibits, QualityTab, add_exhibits, quality_of
from tasks.dataset.preview.samples import choose_rows
from tasks.dataset.preview.tiles import SHOWN, Tile, legible, origins_of, read_tile, without_folder
from tasks.dataset.quality.assessment import ASSESSMENT
from tasks.dataset.quality.examine import CountTokens, assess_version
from tasks.dataset.quality.scored import kept_scores, score_chart
from tasks.dataset.quality.verdict import Terms, version_findings
from tasks.dataset.sample_reader import SampleReader
from tasks.dataset.version.build_info import read_build_info
from tasks.dataset.version.layout import CURRENT, SHARDS, linked, resolve
from tasks.dataset.version.manifest import Manifest, passed_over_lines, read_manifest
from tasks.dataset.version.rejects import RejectGroup, count_groups, read_groups
from tasks.dataset.version.tables import read_shards

LEAK_BUDGET: float = Dataset.model_fields["leak_budget"].default
USUAL = Terms(LEAK_BUDGET)
NO_TOKENS = "Tokens per caption are left out: tarmac look DATASET counts them where open_clip is installed."


@dataclass
class Content:
    """What the page shows, and sentences about what it cannot show."""

    manifest: Manifest | None = None
    private: str = ""
    """Why only counts are shown; empty if samples may be shown."""
    built: float | None = None
    """The time of the build in Unix seconds; None if build.json cannot be read."""
    why_none: str = ""
    """Why there is no manifest, and so only faults are shown."""
    gallery: dict[str, list[Tile]] = field(default_factory=dict)
    groups: Sequence[RejectGroup] = ()
    passed_over: Sequence[str] = ()
    charts: list[BarLayout] = field(default_factory=list)
    columns: list[numbers.NumberColumn] = field(default_factory=list)
    shard_charts: list[BarLayout] = field(default_factory=list)
    no_tokens: str = ""
    missing: list[str] = field(default_factory=list)
    faults: Faults | None = None
    terms: Terms = USUAL
    """By what the quality is judged: without a config by the build's leak budget and a usual batch size."""
    has_config: bool = False
    quality: QualityTab | None = None
    map: LikenessMap | None = None


@dataclass(frozen=True)
class WrittenPage:
    """A page that was written, with the number of samples on it and of those that could not be shown
    completely. `next` is the command that repairs the faults verify found, or empty; `findings` are those on
    what the samples are worth, judged by `terms`."""

    path: Path
    shown: int
    faulty: int
    next: str = ""
    findings: Sequence[Finding] = ()
    terms: Terms = USUAL


def write_look(
    version: Path,
    out: Path,
    *,
    count_tokens: CountTokens | None = None,
    progress: Progress = no_progress,
    checked: Checked | None = None,
    terms: Terms | None = None,
) -> WrittenPage:
    """Write the page of a version to `out`; OSError if it cannot be written.

    `count_tokens` counts the tokens of a caption; without it the page states that token counts are left out.
    `checked` is verify's report; without it there is no tab of faults. `terms` are those of a config.
    """
    content = gather_page(version, count_tokens, progress, checked, terms)
    text = render(
        "dataset/look.html",
        content=content,
        manifest=content.manifest,
        faults=content.faults,
        quality=content.quality,
        name=content.manifest.name if content.manifest else home(version).name,
        version=version.resolve().name,
        built=content.built,
        figures=list(numbers.FIGURES),
        written=time.time(),
    )
    write_atomic(out, text)
    steps = commands(checked, version) if checked else ()
    tiles = [one for tiles in content.gallery.values() for one in tiles]
    faulty = sum(bool(tile.faults) for tile in tiles)
    findings = content.quality.findings if content.quality else ()
    return WrittenPage(out, len(tiles), faulty, steps[0][0] if steps else "", findings, content.terms)


def write_beside(version: Path, terms: dict[str, Any], progress: Progress = no_progress) -> None:
    """Write the page of a version to its usual place, without a tab of faults; `terms` as JSON."""
    write_look(version, page_path(version), progress=progress, terms=Terms(**terms))


def page_path(version: Path) -> Path:
    """Return `DATASET/look.html` for the current version, `DATASET/look-<version>.html` for another.

    The page of a version outside any dataset's `versions` lies next to the version's folder, never inside it.
    """
    version = version.resolve()
    dataset = home(version)
    is_current = dataset != version and (dataset / CURRENT).resolve() == version
    folder = version.parent if dataset == version else dataset
    return folder / ("look.html" if is_current else f"look-{version.name}.html")


def version_at(path: Path) -> Path:
    """Return the version's folder for the path of a dataset or a version, even without a manifest, because
    the page shows that as a fault; UsageError if nothing there can be a version."""
    try:
        return resolve(path)
    except UsageError:
        with unreadable_as_error():
            target = path.parent / os.readlink(path) if path.is_symlink() else path
            for folder in filter(None, (target, linked(target))):
                if (folder / SHARDS).is_file() or any(folder.glob("*.tar")) or any(folder.glob("*/*.tar")):
                    return folder
        raise


def gather_page(
    version: Path,
    count_tokens: CountTokens | None = None,
    progress: Progress = no_progress,
    checked: Checked | None = None,
    terms: Terms | None = None,
) -> Content:
    """Read everything on the page from the version's folder."""
    content = Content(has_config=terms is not None)
    _add_build(content, version)
    content.terms = terms or content.terms
    try:
        manifest = content.manifest = read_manifest(version)
    except DataError as error:
        content.why_none = f"Nothing is shown: {without_folder(error, version)}."
    else:
        content.groups = count_groups(manifest.rejects)
        content.passed_over = passed_over_lines(manifest.passed_over, bool(content.private))
        with _noted(content, version, "No examples of rejects are shown"):
            content.groups = read_groups(version, manifest.rejects, bool(content.private))
        with _noted(content, version, "No distributions are shown"):
            _add_numbers(content, manifest, version, progress)
        if manifest.accepted:
            with _noted(content, version, "What the samples are worth is not shown"):
                _add_quality(content, manifest, version, progress)
        with _noted(content, version, "No shards are shown"):
            content.shard_charts = numbers.shard_charts(read_shards(version))
        if not content.private:
            samples = {name: split.samples for name, split in manifest.splits.items()}
            _add_gallery(content, samples, manifest.modality, version, progress)
            if manifest.modality in MAPPED:
                with _noted(content, version, "No map is shown"):
                    copies = content.quality.shown_copies if content.quality else ()
                    content.map = likeness_map(version, samples, manifest.modality, copies, progress)
            if manifest.modality in numbers.TOKENIZED and manifest.accepted:
                _add_tokens(content, samples, version, count_tokens)
    if checked is not None:
        faults = content.faults = faults_of(checked, version, bool(content.private))
        if not content.private and content.manifest is None:
            lost = "Faulty samples are not shown: without the manifest their modality is unknown."
            faults.missing.append(lost)
        elif not content.private and content.manifest and content.manifest.modality in SHOWN:
            faults.tiles = faulty_tiles(version, checked.report.findings, content.manifest.modality)
    return content


@contextmanager
def _noted(content: Content, version: Path, what: str) -> Iterator[None]:
    """Note on the page that the section of the block cannot be read, so that the others are shown."""
    try:
        yield
    except DataError as error:
        content.missing.append(f"{what}: {without_folder(error, version)}.")


def _add_build(content: Content, version: Path) -> None:
    """Add when the version was built, and why its samples may not be shown. They may only if build.json is
    intact and records that the data is not private."""
    try:
        info = read_build_info(version)
    except DataError as error:
        way_out = " tarmac repair DATASET --config CONFIG writes it again." if is_built(version) else ""
        problem = without_folder(error, version)
        content.private = (
            f"It is unknown whether the data is private, because {problem}: counts only.{way_out}"
        )
        return
    content.built = info.built
    content.terms = Terms(info.dataset.get("leak_budget", LEAK_BUDGET))
    if info.private:
        content.private = (
            "The dataset is private (dataset.private): counts only. No sample was opened to be shown."
        )


def _add_quality(content: Content, manifest: Manifest, version: Path, progress: Progress) -> None:
    """Add what the assessment found, which is made now if there is none."""
    found = ASSESSMENT.validate_python(assess_version(version, progress))
    is_private = bool(content.private)
    terms = replace(content.terms, is_private=is_private)
    tab = content.quality = quality_of(
        found, version_findings(version, found, terms), content.columns, is_private
    )
    if not is_private and manifest.modality in SHOWN:
        add_exhibits(tab, found, Exhibits(version, manifest.modality), progress)


def _add_numbers(content: Content, manifest: Manifest, version: Path, progress: Progress) -> None:
    content.columns = numbers.read_distributions(version, list(manifest.splits), manifest.modality, progress)
    content.charts = numbers.column_charts(content.columns)
    scores = kept_scores(version)
    chart = None if scores is None else score_chart(scores)
    if chart is not None:
        content.charts.append(chart)


def _add_gallery(
    content: Content, samples: Mapping[str, int], modality: str, version: Path, progress: Progress
) -> None:
    if modality not in SHOWN:
        named = legible(modality, 80)
        content.missing.append(f"This version of Tarmac cannot show samples of modality {named}.")
        return
    chosen = choose_rows(samples, modality)
    total, done = sum(map(len, chosen.values())), 0
    for split, rows in chosen.items():
        with _noted(content, version, f"No samples of {split} are shown"):
            reader = SampleReader(version, split)
            origins = origins_of(version, split, rows)
            content.gallery[split] = []
            for row in rows:
                if row < len(reader):
                    tile = read_tile(reader, row, modality)
                    content.gallery[split].append(replace(tile, origin=origins.get(row, "")))
                done += 1
                progress(done, total, "samples")


def _add_tokens(
    content: Content, samples: Mapping[str, int], version: Path, count_tokens: CountTokens | None
) -> None:
    """Add the tokens per caption of a limited number of captions."""
    if count_tokens is None:
        content.no_tokens = NO_TOKENS
        return
    lengths = numbers.token_lengths(version, samples, count_tokens)
    if lengths.total:
        splits = {"a sample of all": lengths}
        content.columns.append(numbers.NumberColumn("tokens", "Tokens per caption", "tokens", splits))
    if (chart := numbers.token_chart(lengths)) is not None:
        content.charts.append(chart)
