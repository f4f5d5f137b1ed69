"""The photographer: pictures in a folder per class, with what phones and a NAS leave among them."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from PIL import Image

from tasks.core.files import read_json
from tasks.dataset.version.versions import resolve
from tests.system.first_days.person import ORIENTATION, Person, photo

pytestmark = pytest.mark.system


def test_photos_in_folders_of_any_script(person: Person) -> None:
    """The photographer: classes in Japanese and Cyrillic, pictures of a phone, a GIF and an MPO among them,
    a NAS's own thumbnails, and files that are no pictures."""
    pets = person.folder / "raw"
    plain = {}
    for name in ("カラス", "кошка", "dog"):
        (pets / name).mkdir(parents=True)
        for number in range(20):
            path = pets / name / f"IMG {number:04d}.jpg"
            path.write_bytes(photo(number, "JPEG", orientation=6 if number % 4 == 0 else 1))
        for number in range(4):
            content = photo(number, "PNG")
            (pets / name / f"scan {number}.png").write_bytes(content)
            plain[content] = name
    (pets / "dog" / "old.gif").write_bytes(photo(1, "GIF"))
    (pets / "dog" / "stereo.mpo").write_bytes(photo(2, "MPO"))
    (pets / "dog" / "notes.docx").write_bytes(b"PK\3\4 notes")
    (pets / "dog" / "@eaDir").mkdir()
    (pets / "dog" / "@eaDir" / "SYNOPHOTO_THUMB.jpg").write_bytes(photo(3, "JPEG"))

    assert "folders' names" in person.types("init", "raw")
    assert "1 file passed over: 1 .docx" in person.types("plan", "configs/raw.yaml")
    built = person.types("build", "configs/raw.yaml")
    assert "74 read = 74 accepted" in built and "1 file passed over: 1 .docx" in built
    person.types("verify", "data/raw")
    person.types("look", "data/raw")

    version = resolve(person.folder / "data/raw")
    splits = read_json(version / "manifest.json")["splits"]
    code = (
        "import json, sys, datasets\n"
        "print(json.dumps({s: d.num_rows for s, d in datasets.load_dataset(sys.argv[1]).items()}))"
    )
    offline = {**person.env, "HF_HUB_OFFLINE": "1", "HF_HOME": str(person.folder / "hf")}
    loaded = subprocess.run(
        [sys.executable, "-c", code, str(version)], env=offline, capture_output=True, text=True, timeout=300
    )
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout.splitlines()[-1]) == {
        name: one["samples"] for name, one in splits.items()
    }

    samples = [sample for split in splits for sample in person.samples(split)]
    stored = {content for sample in samples for name, content in sample.items() if name == "png"}
    assert plain.keys() <= stored, "a PNG was encoded again"
    sides = []
    for sample in samples:
        with Image.open(io.BytesIO(next(sample[name] for name in ("jpg", "png") if name in sample))) as image:
            assert image.getexif().get(ORIENTATION, 1) == 1
            sides.append(image.size)
    assert sides.count((32, 48)) == 15, "three classes with five pictures of an upright phone each"
    assert {json.loads(sample["json"])["label"] for sample in samples} == {"カラス", "кошка", "dog"}
