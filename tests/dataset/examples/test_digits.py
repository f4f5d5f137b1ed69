import csv
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from tasks.dataset.examples import DIGITS, whole, write_example
from tasks.dataset.formats import png


def test_digits_are_images_with_captions(raw_digits: Path) -> None:
    folder = raw_digits
    rows = list(csv.DictReader((folder / "captions.csv").open()))
    assert len(rows) == 1797
    assert set(Counter(row["label"] for row in rows)) == set(DIGITS)
    assert all(row["label"] in row["caption"] for row in rows)
    templates = Counter(row["caption"].replace(row["label"], "{}") for row in rows)
    assert len(templates) >= 5 and min(templates.values()) > 100
    assert len({(row["label"], row["caption"]) for row in rows}) == 10 * len(templates)
    image = Image.open(folder / rows[0]["file"])
    assert image.size == (32, 32) and image.getextrema() == (0, 239)
    assert png.encode(image) == (folder / rows[0]["file"]).read_bytes()  # the same on every machine
    assert [path.name for path in folder.parent.iterdir()] == ["digits"]


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert write_example("digits", tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("is_there", [True, False])
def test_an_empty_folder_that_one_stands_in_is_filled(
    is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    stood_in = place.stat().st_ino
    path = Path(".") if is_there else Path("new")
    with whole(path) as draft:
        (draft / "nifti").mkdir()
        (draft / "a.csv").write_text("a")
    assert sorted(entry.name for entry in path.iterdir()) == ["a.csv", "nifti"]
    assert place.stat().st_ino == stood_in, "a shell would stand in a folder that is gone"
    assert [entry.name for entry in tmp_path.iterdir()] == ["here"]


def test_what_is_broken_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), whole(tmp_path / "data") as draft:
        (draft / "a.csv").write_text("a")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_two_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    with whole(tmp_path / "data") as one:
        (one / "a.csv").write_text("one")
        with whole(tmp_path / "data") as other:
            (other / "a.csv").write_text("other")
    assert [path.read_text() for path in tmp_path.glob("*/*")] == ["other"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
