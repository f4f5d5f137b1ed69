import csv
from collections import Counter
from pathlib import Path

from PIL import Image

from tasks.dataset import png
from tasks.dataset.build import build
from tasks.dataset.examples import DIGITS, digits
from tests.dataset import raw


def test_digits_are_images_with_captions(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "digits"
    assert digits(folder) == 1797
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
    result = build(raw.config(folder, tmp_path / "out", workers=2, shard={"samples": 256}))
    assert (result.accepted, result.shards) == (1797, 10)


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert digits(tmp_path) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
