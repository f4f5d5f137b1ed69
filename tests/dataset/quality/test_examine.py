"""What an assessment reads, keeps and makes again."""

import re
from pathlib import Path

import pytest

from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.formats import measures
from tasks.dataset.quality import columns, examine, texts
from tasks.dataset.quality.assessment import ASSESSMENT, Assessment, kept_assessment, path_of
from tasks.dataset.quality.kinds import PICTURE_KINDS
from tasks.dataset.quality.verdict import kept_findings
from tests.dataset import raw
from tests.dataset.raw import chat

CAPTION = "a long sentence about what can be seen here, number "
FOREIGN = "ein langer Satz auf Deutsch, den hier sonst niemand schreibt, Nummer "


def with_leaks(folder: Path, *, test: int, val: int) -> Config:
    """A dataset of which so many samples of test and val stand in train, too, three times each."""
    folder.mkdir()
    rows = []
    for number in range(test + val):
        held_out = "test" if number < test else "val"
        for place, split in enumerate(("train", "train", "train", held_out)):
            name = f"{split}{number:02d}{'abcd'[place]}.png"
            (folder / name).write_bytes(raw.png(number, 40))
            text = FOREIGN if split == "val" else CAPTION
            rows.append((name, f"{text}{number} of {name}", split))
    raw.write_table(folder, rows, ("file", "caption", "split"))
    return raw.config(folder, folder.parent / "data", splits={"from": "split"})


def assessed(version: Path) -> Assessment:
    return ASSESSMENT.validate_python(examine.assess_version(version))


def test_each_leak_is_shown_by_a_sample_of_its_split_and_one_that_is_trained_on(tmp_path: Path) -> None:
    config = with_leaks(tmp_path / "raw", test=20, val=2)
    findings = kept_findings(config, build(config).version)
    shown = {one.where["split"]: one.evidence["for example"] for one in findings if one.code == "split.leak"}
    for split in ("test", "val"):
        assert re.fullmatch(
            rf"train: train(\d\d)[abc]\.png = {split}: {split}\1d\.png and 2 more", shown[split]
        )


def test_what_a_judge_could_not_judge_is_judged_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = build(with_leaks(tmp_path / "raw", test=0, val=9)).version
    with monkeypatch.context() as without:
        without.setattr(examine, "find_spec", lambda name: None)
        without.setattr(examine, "caption_counter", lambda: None)
        without.setattr(texts, "_classifier", lambda: None)
        assert not {"language", "truncated"} & assessed(version).captions.keys()
    found = assessed(version)
    assert found.captions["language"].count == 9 and "truncated" in found.captions
    assert kept_assessment(version) == found
    with monkeypatch.context() as without:  # and what was judged stays where a judge is gone
        without.setattr(examine, "find_spec", lambda name: None)
        assert assessed(version) == found


def test_what_was_found_counts_where_it_cannot_be_kept(tmp_path: Path) -> None:
    config = with_leaks(tmp_path / "raw", test=4, val=0)
    version = build(config).version
    path_of(version).parent.write_text("a file where a folder belongs")
    assert assessed(version).leaked == {"test": 4}
    assert [one.code for one in kept_findings(config, version)][:1] == ["split.leak"]


def test_an_assessment_of_another_format_is_made_again(tmp_path: Path) -> None:
    version = build(with_leaks(tmp_path / "raw", test=4, val=0)).version
    found = assessed(version)
    path = path_of(version)
    path.write_text(path.read_text().replace('"format": 2', '"format": 1').replace('"test": 4', '"test": 3'))
    assert kept_assessment(version) is None and assessed(version) == found


def test_equal_conversations_are_no_repeated_captions(tmp_path: Path) -> None:
    rows = [chat.row(number, texts=[chat.turn("What is it?"), chat.turn("Sure?")]) for number in range(30)]
    config = chat.config(chat.write_parquet(tmp_path / "rows.parquet", rows), tmp_path / "data")
    version = build(config).version
    assert assessed(version).repeats == {}
    assert "captions.repeated" not in [one.code for one in kept_findings(config, version)]


def test_labels_without_number_are_no_classes_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MOST_WORDS", 10)
    monkeypatch.setattr(examine, "MOST_WORDS", 10)
    raw.pictures(tmp_path / "raw", 60)
    names = [(f"{number:04d}.png", f"picture {number}", f"label {number}") for number in range(60)]
    raw.write_table(tmp_path / "raw", names)
    version = build(raw.config(tmp_path / "raw", tmp_path / "data", splits={"val": 0.4})).version
    samples = assessed(version).samples
    codes, words = columns.read_statistics(version, samples).words["label"]
    assert len(words) == samples["train"] and len(codes) == 60
    assert assessed(version).classes == {}


def test_a_picture_of_one_colour_is_the_same_to_all() -> None:
    (rule,) = (kind.filter for kind in PICTURE_KINDS if kind.name == "constant")
    assert rule is not None and rule.limit == measures.CONSTANT
