"""Rules on what the build measures of each sample."""

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from flows.cli import main
from tasks.core.config import validate
from tasks.core.errors import DataError, NeedsApproval, UsageError
from tasks.core.schema.dataset import Limits
from tasks.dataset.building.builder import build
from tasks.dataset.filters import passes_measured
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.manifest import read_manifest
from tests.dataset import raw
from tests.dataset.building.prepared import keys, make, noise, published

FLAT = {f"flat{number}.png": noise(100 + number, contrast=0.005) for number in range(3)}
BUSY = {f"busy{number}.png": noise(number) for number in range(9)}


def test_a_rule_on_a_statistic_filters_and_rejects_nothing(tmp_path: Path) -> None:
    config = make(tmp_path / "raw", {**FLAT, **BUSY}, filter={"contrast": 5}, splits={}, reject_budget=0.0)
    version = build(config).version
    manifest = read_manifest(version)
    assert (manifest.read, manifest.accepted, manifest.filtered, manifest.rejects) == (12, 9, 3, {})
    assert keys(version) == {"train": [name.removesuffix(".png") for name in sorted(BUSY)]}
    assert pq.read_table(version / "rejects.parquet").num_rows == 0
    assert verify(version, "full").ok


def test_a_filtered_sample_is_no_loss_and_comes_back(tmp_path: Path) -> None:
    pictures = {**FLAT, **BUSY}
    first = published(make(tmp_path / "raw", pictures, splits={}))
    filtered = published(make(tmp_path / "raw", pictures, splits={}, filter={"contrast": {"max": 5}}))
    assert (filtered.lost, filtered.filtered) == (9, 9)
    again = published(make(tmp_path / "raw", pictures, splits={}))
    assert again.version == first.version and again.gained == 9


def test_samples_that_are_filtered_because_they_were_overwritten_are_a_loss(tmp_path: Path) -> None:
    """A disk that turned pictures white is no rule of the user's."""
    published(make(tmp_path / "raw", BUSY, splits={}, filter={"contrast": 5}))
    for name in list(BUSY)[:4]:
        noise(100, contrast=0.005).save(tmp_path / "raw" / name)
    config = make(tmp_path / "raw", BUSY, splits={}, filter={"contrast": 5})
    with pytest.raises(NeedsApproval, match=r"4 of the 9 samples .* are overwritten with other content"):
        build(config)
    accepted = build(config, accept_loss=True)
    assert (accepted.lost, accepted.filtered) == (4, 4)


def test_a_rule_on_a_column_that_one_of_two_sources_lacks_is_refused(tmp_path: Path) -> None:
    """It would be about the column in one and about the pictures in the other."""
    make(tmp_path / "raw", BUSY)
    table = tmp_path / "raw/captions.csv"
    rows = table.read_text().splitlines()
    (tmp_path / "raw/more.csv").write_text(
        "\n".join([f"{rows[0]},width", *(f"{row},7" for row in rows[1:])]) + "\n"
    )
    config = make(tmp_path / "raw", BUSY, filter={"width": 5})
    given = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    first = given["dataset"].pop("source")
    given["dataset"]["sources"] = [first, {**first, "path": str(table.with_name("more.csv"))}]
    why = r"dataset.filter.width: .*more.csv has a column width, and .*captions.csv has none, .*; rename the"
    with pytest.raises(UsageError, match=why):
        build(validate(given, "test"))


def test_a_filtered_shard_is_known_to_the_next_build(tmp_path: Path) -> None:
    pictures = {**FLAT, **BUSY}
    config = make(tmp_path / "raw", pictures, splits={}, filter={"contrast": 5}, shard={"samples": 4})
    first = published(config)
    second = build(
        make(
            tmp_path / "raw",
            {**pictures, "new.png": noise(50)},
            splits={},
            filter={"contrast": 5},
            shard={"samples": 4},
        )
    )
    assert (second.accepted, second.filtered, second.gained) == (10, 3, 1)
    assert second.shards_rewritten < first.shards + 1


def test_when_all_are_filtered_the_build_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of 12 samples is left: 12 filtered, 0 rejected"):
        build(make(tmp_path / "raw", {**FLAT, **BUSY}, filter={"width": 1000}))


def test_a_column_of_the_source_comes_before_a_statistic(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    make(folder, BUSY)
    rows = [f"{name},a caption,{7 if number < 4 else 70}" for number, name in enumerate(sorted(BUSY))]
    (folder / "captions.csv").write_text("\n".join(["file,caption,width", *rows]) + "\n")
    version = build(raw.config(folder, tmp_path / "out", filter={"width": 50}, splits={})).version
    assert read_manifest(version).accepted == 5


def test_an_unknown_rule_names_the_statistics_too(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no column 'sharpnes'; did you mean sharpness\?"):
        build(make(tmp_path / "raw", BUSY, filter={"sharpnes": 0.3}))


def test_a_rule_leaves_out_what_was_measured_only(tmp_path: Path) -> None:
    """No border is measured on pictures below 64 pixels, and no sharpness below 32."""
    framed = Image.new("RGB", (96, 96), "white")
    framed.paste(noise(70).resize((96, 48)), (0, 24))
    pictures = {"framed.png": framed, **BUSY, **{f"small{n}.png": noise(80 + n, side=20) for n in range(4)}}
    rules = {"border": {"max": 0.15}, "sharpness": 0.01}
    first = published(make(tmp_path / "raw", pictures, splits={}, shard={"samples": 4}, filter=rules))
    assert (first.accepted, first.filtered) == (13, 1)
    again = make(  # asks the sidecars of the first
        tmp_path / "raw", {**pictures, "new.png": noise(50)}, splits={}, shard={"samples": 4}, filter=rules
    )
    second = build(again)
    assert (second.accepted, second.filtered, second.lost) == (14, 1, 0)


def test_a_rule_on_words_needs_the_word(tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    make(folder, BUSY)
    (folder / "captions.csv").unlink()
    config = raw.config(folder, tmp_path / "out", filter={"colour": ["grey"]}, splits={})
    raw.write_table(folder, [(name, f"a picture {name}", "") for name in sorted(BUSY)])
    with pytest.raises(DataError, match="none of 9 samples is left: 9 filtered, 0 rejected"):
        build(config)
    assert passes_measured({"label": ["cat"]}, {"label": "cat"})
    assert not passes_measured({"label": ["cat"]}, {"label": None})
    assert passes_measured({"spacing_z": Limits(max=3)}, {"spacing_z": math.nan})


@pytest.mark.parametrize("rule", ["border", "sharpness", "contrast"])
def test_a_rule_on_pixels_needs_decoding(
    tmp_path: Path, rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = make(tmp_path / "raw", BUSY, filter={rule: {"max": 0.15}}, image={"check": "header"})
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(given.model_dump(mode="json", exclude_unset=True)))
    assert main(["build", str(path)]) == 2
    assert f"dataset.filter.{rule}: is not measured with image.check: header" in capsys.readouterr().err
    allowed = make(tmp_path / "raw", BUSY, filter={"width": 50}, image={"check": "header"}, splits={})
    assert build(allowed).accepted == 9
