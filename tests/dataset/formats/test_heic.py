"""HEIC, as phones write it, is read where its optional package is installed, and names that package where not."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from flows.cli import main
from tasks.core.config import dump
from tasks.core.schema import ImageRules
from tasks.dataset.building.builder import build
from tasks.dataset.building.fingerprint import rules_digest
from tasks.dataset.formats import images
from tasks.dataset.init import survey
from tasks.dataset.version.rejects import Reject
from tests.dataset.init.kinds import config_of, warnings
from tests.dataset.raw import TURNS, heic, png

JPG = ImageRules(encode="jpg")


@pytest.mark.parametrize("orientation", TURNS)
def test_it_is_stored_upright_whatever_the_camera_was(orientation: int) -> None:
    kind, stored, size = images.store(heic(orientation), JPG)[:3]
    picture = Image.open(io.BytesIO(stored))
    assert (kind, size, picture.size) == ("jpg", (32, 64), (32, 64))
    assert picture.getexif().get(0x0112) is None
    above, below = picture.getpixel((16, 10)), picture.getpixel((16, 54))
    assert above[0] > 200 > 50 > above[2] and below[2] > 200 > 50 > below[0]  # type: ignore[index,misc]


@pytest.mark.parametrize(
    ("data", "rules", "reject"),
    [
        (
            heic(),
            ImageRules(),
            "image.undecodable: shards hold jpg, png, webp, not heic: set dataset.image.encode",
        ),
        (heic(), ImageRules(encode="jpg", max_pixels=100), "image.too_large: 32 x 64, more than 100 pixels"),
        (heic()[:400], JPG, "image.undecodable: heic: "),
        (heic()[:-20], JPG, "image.undecodable: heic: "),
        (heic()[:24], JPG, "image.undecodable: heic: "),
    ],
)
def test_what_cannot_be_taken_says_why(data: bytes, rules: ImageRules, reject: str) -> None:
    with pytest.raises(Reject) as caught:
        images.store(data, rules)
    assert str(caught.value).startswith(reject)


def photos(folder: Path) -> None:
    for place in ("rome", "oslo"):
        (folder / place).mkdir(parents=True)
        for number in range(3):
            (folder / place / f"{number}.HEIC").write_bytes(heic(6, "red" if place == "rome" else "green"))
    (folder / "rome" / "0.jpg").write_bytes(png(1, kind="JPEG"))


def test_a_folder_of_a_phone_is_built_and_a_picture_with_its_jpeg_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "raw")
    seen = survey("raw")
    assert "heic" not in warnings(seen)
    rules = next(one for one in seen.best.dataset if one.key == "image")
    assert rules.value == {"encode": "jpg"} and rules.evidence.startswith(
        "for heic, which shards cannot hold"
    )
    built = build(config_of(seen, tmp_path))
    assert (built.read, built.accepted) == (6, 6)
    tables = [pq.read_table(path).to_pylist() for path in (built.version / "samples").glob("*.parquet")]
    sizes = sorted((one["width"], one["height"]) for samples in tables for one in samples)
    assert sizes == [(12, 12)] + [(32, 64)] * 5, "the JPEG stands for its HEIC"


def test_without_its_package_init_plan_and_rejects_say_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "raw")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    seen = survey("raw")
    assert "6 images in .heic will be rejected: pip install 'tarmac[heic]'" in warnings(seen)
    config = config_of(seen, tmp_path)
    (tmp_path / "config.yaml").write_text(dump(config))
    assert main(["plan", "config.yaml"]) == 1, "the build would stop"
    reject = "heic is read with pillow-heif: pip install 'tarmac[heic]'"
    assert reject in capsys.readouterr().out
    with pytest.raises(Reject) as caught:
        images.store(heic(), JPG)
    assert (caught.value.reason, caught.value.detail) == ("image.undecodable", reject)
    before = rules_digest(config.dataset)
    monkeypatch.delitem(sys.modules, "pillow_heif")
    assert rules_digest(config.dataset) != before, "so that the next build tries the rejects again"
    plain = config.dataset.model_copy(update={"image": ImageRules()})
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pillow_heif", None)
        before = rules_digest(plain)
    assert rules_digest(plain) == before, "but nothing is converted again where no HEIC can be stored"
