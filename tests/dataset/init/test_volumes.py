"""What `tarmac init` finds in folders of volumes."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from tasks.core.errors import UsageError
from tasks.dataset.building.builder import build
from tasks.dataset.init import config_text, survey
from tasks.dataset.init.volumes import axes_of, patient_pattern
from tasks.loader.indexed import IndexedReader
from tests.dataset.init.kinds import config_of, nifti, npz, scan, taken, warnings


def test_the_evidence_counts_the_files_that_each_table_names(tmp_path: Path) -> None:
    nifti(tmp_path / "raw")
    torn = tmp_path / "raw" / "train" / "train_9_a_1.nii.gz"
    torn.write_bytes(b"torn")
    seen = survey("raw")
    found = seen.best.seen
    assert found["reports"].startswith("VolumeName in reports.csv matches 6 of 7 files")
    assert "2 labels: nodule, effusion" in found["labels"]
    assert "train_9" not in config_text(seen)


def test_the_patient_is_guessed_from_names_and_no_name_is_written(tmp_path: Path) -> None:
    nifti(tmp_path / "raw")
    seen = survey("raw")
    config = config_of(seen, tmp_path).dataset
    assert config.private and config.splits.group_by == "patient"
    assert "3 patients in 6 files" in seen.best.seen["fields"]
    assert "train_0" not in config_text(seen)


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (["phantom_001_a_1.npz", "phantom_001_b_1.npz", "phantom_002_a_1.npz"], 2),
        (["scan-7-early.npz", "scan-7-late.npz", "scan-8-early.npz"], 2),
        (["site_1.npz", "site_2.npz", "site_3.npz"], None),
        ([f"ward_1_{number}.npz" for number in range(50)] + ["ward_2_1.npz"], None),
    ],
)
def test_a_word_and_a_number_in_front_may_be_the_patient(names: list[str], count: int | None) -> None:
    guessed = patient_pattern(names)
    assert (None if guessed is None else guessed[1]) == count


def test_both_texts_of_a_report_are_taken(tmp_path: Path) -> None:
    nifti(tmp_path / "raw")
    source: Any = config_of(survey("raw"), tmp_path).dataset.source
    assert source.reports.text == ["Findings_EN", "Impressions_EN"]
    assert source.rescale == "header" and source.metadata is None


def test_stored_values_are_rescaled_by_the_table(tmp_path: Path) -> None:
    nifti(tmp_path / "raw")
    for path in (tmp_path / "raw").rglob("*.nii.gz"):
        image = nibabel.load(path)
        stored = np.asarray(image.dataobj).astype(np.int16) + 1024
        nibabel.save(nibabel.Nifti1Image(stored, image.affine), path)
    config = config_of(survey("raw"), tmp_path)
    assert config.dataset.source.rescale == "metadata"  # type: ignore[union-attr]
    assert taken(config) == 6


def test_stored_hu_are_not_rescaled_though_the_header_has_a_slope(tmp_path: Path) -> None:
    nifti(tmp_path / "raw")
    for path in (tmp_path / "raw").rglob("*.nii.gz"):
        image = nibabel.Nifti1Image(np.asarray(nibabel.load(path).dataobj), np.diag([-0.75, -0.75, 1.5, 1]))
        nibabel.save(image, path)
        content = bytearray(gzip.decompress(path.read_bytes()))
        content[112:120] = struct.pack("<ff", 1, -1024)
        path.write_bytes(gzip.compress(bytes(content)))
    seen = survey("raw")
    assert config_of(seen, tmp_path).dataset.source.rescale == "none"  # type: ignore[union-attr]
    assert "slope 1 and intercept -1024" in seen.best.seen["rescale"]


def test_a_scale_shows_in_the_values(tmp_path: Path) -> None:
    npz(tmp_path / "raw")
    seen = survey("raw")
    assert config_of(seen, tmp_path).dataset.source.scale == 1000  # type: ignore[union-attr]
    assert "array: arr_0" in config_text(seen)


def test_hu_need_no_scale(tmp_path: Path) -> None:
    npz(tmp_path / "raw", lambda number: {"volume": scan(number), "spacing": np.ones(3)})
    source: Any = config_of(survey("raw"), tmp_path).dataset.source
    assert (source.scale, source.array) == (None, "volume")


def test_no_scale_is_proposed_where_none_makes_the_values_hu(tmp_path: Path) -> None:
    npz(tmp_path / "raw", lambda number: {"arr_0": scan(number) + np.int16(1024)})
    assert config_of(survey("raw"), tmp_path).dataset.source.scale is None  # type: ignore[union-attr]


def test_tables_around_the_folder_are_found(tmp_path: Path) -> None:
    npz(tmp_path / "raw" / "volumes")
    (tmp_path / "raw/volumes/reports.csv").rename(tmp_path / "raw/reports.csv")
    (tmp_path / "raw/labels.csv").write_text('VolumeName,nodule\n"torn,1\n')
    seen = survey("raw/volumes")
    assert taken(config_of(seen, tmp_path)) == 6
    assert "../labels.csv is not used, as it cannot be read: " in warnings(seen)


def test_without_reports_the_message_names_the_table_that_is_needed(tmp_path: Path) -> None:
    npz(tmp_path / "raw")
    (tmp_path / "raw" / "reports.csv").unlink()
    with pytest.raises(UsageError, match="no table of reports names any of 6 volumes"):
        survey("raw")


def test_tables_of_the_same_columns_about_other_volumes_are_one(tmp_path: Path) -> None:
    """CT-RATE has a table of reports for the training and one for the validation."""
    npz(tmp_path / "raw")
    header, *lines = (tmp_path / "raw/reports.csv").read_text().splitlines()
    (tmp_path / "raw/reports.csv").unlink()
    for name, its in (("train", lines[:4]), ("valid", lines[4:]), ("old", lines[:1])):
        (tmp_path / f"raw/{name}.csv").write_text("\n".join([header, *its]) + "\n")
    seen = survey("raw")
    assert "matches 6 of 6 files" in seen.best.seen["reports"]
    assert "not used, as other tables name these volumes: old.csv" in warnings(seen)
    assert taken(config_of(seen, tmp_path)) == 6


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ([(6, 16, 16)], "zyx"),
        ([(16, 16, 6), (16, 16, 9)], "xyz"),
        ([(16, 6, 16)], "yzx"),
        ([(6, 12, 16), (9, 12, 16)], "zyx"),
        ([(12, 16, 6), (12, 16, 9)], "xyz"),
    ],
)
def test_the_side_that_slices_are_stacked_along_is_z(shapes: list[tuple[int, ...]], axes: str) -> None:
    found, why = axes_of(shapes)
    assert found == axes and "is assumed" in why


@pytest.mark.parametrize("shapes", [[(16, 16, 16)], [(6, 12, 16)], [(6, 16, 16), (16, 16, 6)]])
def test_sides_that_do_not_show_the_axes_are_assumed_to_be_zyx(shapes: list[tuple[int, ...]]) -> None:
    assert axes_of(shapes) == ("zyx", "assumed, as the sides do not show which one is z")


def test_volumes_with_z_last_are_turned(tmp_path: Path) -> None:
    npz(tmp_path / "raw", lambda number: {"arr_0": scan(number).transpose(2, 1, 0)})
    seen = survey("raw")
    assert seen.best.seen["axes"].startswith("xyz: z is the last side, as slices are square; ")
    config = config_of(seen, tmp_path)
    assert config.dataset.source.axes == "xyz"  # type: ignore[union-attr]
    sample = IndexedReader(build(config).version, "val").read(0)
    assert json.loads(sample.members["json"])["shape"] == [6, 16, 16]


def test_a_table_in_another_encoding_names_the_command(tmp_path: Path) -> None:
    npz(tmp_path / "raw")
    path = tmp_path / "raw" / "reports.csv"
    path.write_bytes(path.read_text().replace("is seen", "is seen: größer").encode("cp1252"))
    assert "iconv -f cp1252 -t utf-8 raw/reports.csv > NEW" in warnings(survey("raw"))
