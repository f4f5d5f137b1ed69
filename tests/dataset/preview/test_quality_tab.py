"""The quality tab: what was found of photographs with planted faults, and the samples that show it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.cli import main
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.preview import numbers
from tasks.dataset.preview.page import gather_page, page_path, write_beside
from tasks.dataset.preview.quality_tab import RULES, ProposedFilter, class_bars, effect_of
from tasks.dataset.quality.assessment import Found, ShownSample, path_of
from tasks.dataset.quality.scored import ScoreSummary, keep_scores, scores_path
from tasks.dataset.quality.verdict import Terms, kept_findings
from tasks.dataset.version.manifest import read_manifest
from tests.dataset import raw
from tests.dataset.preview.pages import SECRET, a_version, page, page_of, words
from tests.dataset.quality import planted
from tests.dataset.quality.planted import Sample

KINDS = ("exact copies", "blurred", "bars with a watermark", "animations", "names of files")


def with_faults() -> list[Sample]:
    """The photographs with several kinds of faults, each in samples of its own, and one of three labels."""
    samples = planted.clean()
    for number, kind in enumerate(KINDS):
        plant = planted.PLANTS[kind]
        for place in range(12 * number, 12 * number + (12 if plant.adds else 6)):
            made = plant.change(planted.opened(samples[place]), samples[place], place)
            made.name = f"{kind.replace(' ', '_')}_{made.name}"
            if plant.adds:
                samples.append(made)
            else:
                samples[place] = made
    for number, sample in enumerate(samples):
        sample.label = ("cat", "dog", "cat", "cow", "dog", "cat")[number % 6]
    return samples


def config_of(folder: Path, **dataset: Any) -> Config:
    if not (folder / "raw").exists():
        planted.write(with_faults(), folder / "raw")
    output = folder / str(dataset.pop("output", "data"))
    return raw.config(folder / "raw", output, splits={"val": 0.3}, shard={"samples": 64}, **dataset)


def plain(text: str) -> str:
    """A text with ordinary spaces."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("planted")


@pytest.fixture(scope="module")
def version(folder: Path) -> Path:
    return build(config_of(folder)).version


def test_leaks_come_first_with_both_sides_and_their_places(version: Path) -> None:
    tab = gather_page(version).quality
    assert tab is not None and tab.notes[0].head == "split.leak val" and tab.notes[0].severity == "error"
    assert yaml.safe_load(tab.notes[0].config) == {"dataset": {"splits": {"group_by": "content"}}}
    leaks = [group for group in tab.copies if group.is_leak]
    assert (
        leaks and tab.copies[: len(leaks)] == leaks and "2 equal samples in train and val" in leaks[0].title
    )
    for group in leaks:
        assert {tile.split for tile in group.tiles} == {"train", "val"}
        assert any(tile.key.startswith("exact_copies_copy") for tile in group.tiles)
        for tile in group.tiles:
            table = (version.parents[2] / "raw" / "captions.csv").read_text(encoding="utf-8").splitlines()
            line = int(re.fullmatch(r"captions\.csv:(\d+)", tile.origin).group(1))  # type: ignore[union-attr]
            assert table[line - 1].startswith(tile.key) and tile.pictures


def test_the_worst_of_each_kind_are_shown_with_their_value(version: Path) -> None:
    tab = gather_page(version).quality
    assert tab is not None
    pictures = {group.title.partition(":")[0]: group for group in tab.pictures}
    assert set(pictures) == {"Without detail", "Inside a border or bar", "Animations"}
    assert sum(tile.key.startswith("blurred") for tile in pictures["Without detail"].tiles) >= 5
    assert re.fullmatch(r"sharpness 0\.2\d+", pictures["Without detail"].tiles[0].notes[0])
    [captions] = tab.captions
    assert captions.title.startswith("Captions that say nothing: 6 of ")
    assert {tile.caption[:4] for tile in captions.tiles} == {"IMG_"}
    text = words(page(version))
    assert "Copies and leaks" in text and "✗ leak" in text and "1 error" in text
    assert "filter: {sharpness: 0.3}" in text and "About 0.5 is sharp" in text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_proposed_filter_leaves_out_what_it_says(folder: Path, version: Path, rule: ProposedFilter) -> None:
    found = read_manifest(version)
    columns = numbers.read_distributions(version, list(found.splits), found.modality)
    effect = effect_of(rule, columns)
    assert effect is not None
    filtered = build(config_of(folder, filter={rule.name: rule.value}, output=rule.name)).version
    assert round(effect.left_out * found.accepted) == read_manifest(filtered).filtered
    assert (rule.name == "contrast") or read_manifest(filtered).filtered


def test_a_sample_without_a_value_stays(tmp_path: Path) -> None:
    raw.pictures(tmp_path / "raw", 20, side=12)  # too small for a sharpness
    version = build(raw.config(tmp_path / "raw", tmp_path / "data")).version
    (sharp,) = (rule for rule in RULES if rule.name == "sharpness")
    column = numbers.NumberColumn(
        "sharpness",
        "Sharpness",
        "",
        {"train": numbers.Distribution(values=np.array([0.1, 0.5, np.nan, np.nan]))},
    )
    effect = effect_of(sharp, [column])
    assert effect is not None and (effect.left_out, effect.unknown) == (0.25, 0.5)
    assert "filter: {sharpness" not in words(page(version))


def test_classes_have_bars_up_to_thirty_and_the_others_share_one(version: Path) -> None:
    bars = class_bars({f"class {number}": 100 - number for number in range(50)}, is_private=False)
    assert len(bars) == 31 and bars[0].name == "class 0"
    assert bars[30].name == "20 others" and bars[30].samples == sum(range(51, 71))
    assert sum(bar.share for bar in bars) == pytest.approx(1)
    tab = gather_page(version).quality
    assert tab is not None and [bar.name for bar in tab.classes] == ["cat", "dog", "cow"]


def test_of_private_data_there_are_findings_and_counts_only(folder: Path) -> None:
    version = build(config_of(folder, private=True, output="private")).version
    content = gather_page(version)
    tab = content.quality
    assert tab is not None and tab.number_of("error") == 1 and tab.effects
    assert not (tab.copies or tab.pictures or tab.captions) and content.map is None
    assert [bar.name for bar in tab.classes] == ["class 1", "class 2", "class 3"]
    text = words(page(version))
    for secret in ("copy", "blurred_", "captions.csv", "IMG_", "dog"):
        assert secret not in text


def test_a_version_from_before_measures_says_so(tmp_path: Path) -> None:
    text = words(page(a_version(tmp_path)))
    assert "Nothing was measured of these samples" in text and "✓ No copies" not in text


def test_the_kept_assessment_is_read_and_a_new_one_is_kept(version: Path) -> None:
    gather_page(version, count_tokens=len)
    kept = path_of(version)
    text = kept.read_text(encoding="utf-8")
    kept.write_text(text.replace("captions.csv:", "from_the_file.csv:"), encoding="utf-8")
    assert "from_the_file.csv:" in words(page(version))
    kept.unlink()
    outside = version.parents[2] / "elsewhere" / version.name
    version.rename(outside) if not outside.parent.mkdir() else None
    gather_page(outside, count_tokens=len)
    assert not path_of(outside).exists()
    outside.rename(version)


def test_a_torn_shard_costs_its_own_tiles(version: Path) -> None:
    torn = version / "train" / "000000.tar"
    whole = torn.read_bytes()
    torn.write_bytes(whole[:5000])
    try:
        text = words(page(version))
        assert "train/000000.tar is truncated" in text and "split.leak val" in text
    finally:
        torn.write_bytes(whole)


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    bars = class_bars({f"<script>{SECRET}\u202e": 3, "b": 1}, is_private=False)
    assert "\u202e" not in bars[0].name


def test_the_command_ends_with_an_error_where_a_split_has_leaked(
    version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "page.html")
    assert main(["look", str(version), "--quick", "--out", out]) == 1
    said = capsys.readouterr().err
    assert "✗ split.leak val: " in said and " warnings about what the samples are worth: see the tab" in said
    assert main(["look", str(version), "--quick", "--out", out, "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    codes = [finding["code"] for finding in printed["findings"]]
    assert printed["ok"] is False and codes[0] == "split.leak" and "images.blurred" in codes


def test_page_and_terminal_say_by_what_they_judge(
    folder: Path, version: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "page.html")
    assert main(["look", str(version), "--quick", "--out", out]) == 1
    said = capsys.readouterr().err
    assert "judged by a leak budget of 1.0 % and batches of 1,024; tarmac build CONFIG judges by" in plain(
        said
    )
    assert "Judged by a leak budget of 1.0 % and batches of 1,024: no config was at hand" in plain(
        words(page(version))
    )
    main(["look", str(version), "--quick", "--out", out, "--json"])
    assert json.loads(capsys.readouterr().out)["judged_by"] == {"leak_budget": 0.01, "batch_size": 1024}


def test_a_page_of_a_build_judges_by_its_config_as_the_build_does(folder: Path, version: Path) -> None:
    config = config_of(folder, leak_budget=0.9)
    write_beside(version, asdict(replace(Terms.of(config), batch_size=64)))
    text = plain(words(page_of(page_path(version))))
    assert "Judged by a leak budget of 90.0 % and batches of 64." in text and "1 error" not in text
    shown = gather_page(version, terms=Terms.of(config)).quality
    assert shown is not None and list(shown.findings) == kept_findings(config, version)


def test_what_a_model_has_said_is_on_the_page_as_in_the_terminal(folder: Path, version: Path) -> None:
    wrong = Found(9, 90, [ShownSample("train", 0, "0001.jpg", "captions.csv:2", "0.051")])
    scores = ScoreSummary(version.name, "a-model", 90, 90, {"median": 0.3}, {"median": 0.1}, misaligned=wrong)
    keep_scores(version, asdict(scores))
    try:
        tab = gather_page(version).quality
        assert tab is not None
        (note,) = (note for note in tab.notes if note.head == "captions.misaligned")
        assert note.config == "dataset: {filter: {clip_score: 0.2}}"
        assert list(tab.findings) == kept_findings(config_of(folder), version)
    finally:
        scores_path(version).unlink()
