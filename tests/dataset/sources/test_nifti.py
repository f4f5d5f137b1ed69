import gzip
import json
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from nibabel.orientations import apply_orientation, axcodes2ornt, inv_ornt_aff, ornt_transform

from tasks.core.errors import DataError, UsageError
from tasks.core.folders import LocalStore
from tasks.dataset.formats import npy
from tasks.dataset.formats.volumes import stored
from tasks.dataset.modalities.volume_report import VOLUME_REPORT
from tasks.dataset.sources.nifti import NiftiVolumes
from tasks.dataset.version.rejects import Reject
from tests.dataset import ct_clip
from tests.dataset.raw import nifti as raw

NAME = "p0_scan_0"
HU = raw.stored(0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ct"
    folder.mkdir()
    raw.tables(folder, [NAME])
    save(folder, raw.nifti(HU))
    monkeypatch.chdir(tmp_path)
    return folder


def save(folder: Path, data: bytes) -> None:
    (folder / f"{NAME}.nii.gz").write_bytes(raw.packed(data))


def source(folder: Path, **keys: Any) -> NiftiVolumes:
    config = raw.config(folder, keys)
    return NiftiVolumes(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]


def read(folder: Path, **keys: Any) -> tuple[np.ndarray, dict[str, Any]]:
    """The raw volume (D, H, W) and its facts."""
    nifti = source(folder, **keys)
    item = next(nifti.items(next(nifti.containers())))
    members = nifti.read(item.file, item.content)
    return npy.parse(members["volume"]), json.loads(members["json"])


def take(folder: Path, volume: Any = None, **keys: Any) -> Any:
    config = raw.config(folder, keys, **({} if volume is None else {"volume": volume}))
    nifti = NiftiVolumes(config.dataset.all_sources[0], config.dataset, "dataset.source")  # type: ignore[arg-type]
    item = next(nifti.items(next(nifti.containers())))
    return VOLUME_REPORT.take(nifti.read(item.file, item.content), config.dataset)


def rejected(folder: Path, **keys: Any) -> Reject:
    with pytest.raises(Reject) as caught:
        take(folder, **keys)
    return caught.value


def test_a_file_of_ct_rate_comes_out_as_ct_clip_feeds_it(folder: Path) -> None:
    array = raw.stored(1, (30, 28, 20))
    save(folder, raw.nifti(array))
    fed = nibabel.load(folder / f"{NAME}.nii.gz").get_fdata().transpose(2, 0, 1)
    expected = ct_clip.prepared(fed, (1.5, 0.75, 0.75), (2.0, 1.0, 1.0), (12, 24, 18))
    rules = {"window": [-1000, 1000], "spacing_mm": [2, 1, 1], "shape": [12, 24, 18]}
    taken = take(folder, rules)
    voxels = stored.read_crop(stored.open_volume("volume.b2nd", taken.members["volume.b2nd"]))
    assert voxels.shape == (12, 24, 18)
    assert np.abs(voxels - expected).max() <= 0.501
    facts = json.loads(taken.members["json"])
    assert facts["orientation"] == "SLP" and facts["orientation_before"] == "LPS"
    assert facts["shape_before"] == [20, 30, 28] and facts["shape"] == [12, 24, 18]
    assert facts["spacing_before_mm"] == [1.5, 0.75, 0.75] and facts["spacing_mm"] == [2, 1, 1]
    assert facts["pad_fraction"] == round(1 - 22 / 24, 6)


@pytest.mark.parametrize("code", ["LPS", "RAS", "LAS", "PIR", "SAR", "ILA"])
def test_every_orientation_of_a_body_is_stored_alike(folder: Path, code: str) -> None:
    turn = ornt_transform(axcodes2ornt("LPS"), axcodes2ornt(code))
    array = np.ascontiguousarray(apply_orientation(HU, turn))
    save(folder, raw.nifti(array, raw.LPS @ inv_ornt_aff(turn, HU.shape)))
    voxels, facts = read(folder)
    np.testing.assert_array_equal(voxels, HU.transpose(2, 0, 1))
    assert facts["orientation_before"] == code
    assert facts["spacing_mm"] == [1.5, 0.75, 0.75]


@pytest.mark.parametrize("sform", [np.zeros((4, 4)), np.diag([0.0, 1, 1, 1])])
def test_an_affine_that_cannot_be_hides_no_other_and_is_not_guessed(folder: Path, sform: Any) -> None:
    turn = ornt_transform(axcodes2ornt("LPS"), axcodes2ornt("RAS"))
    array = np.ascontiguousarray(apply_orientation(HU, turn))
    header = raw.header(array, None)
    header.set_qform(raw.LPS @ inv_ornt_aff(turn, HU.shape), code=1)
    header.set_sform(sform, code=1)
    save(folder, bytes(header.binaryblock) + bytes(4) + array.tobytes(order="F"))
    voxels, facts = read(folder)
    np.testing.assert_array_equal(voxels, HU.transpose(2, 0, 1))
    assert facts["orientation_before"] == "RAS"
    header.set_qform(None, code=0)
    save(folder, bytes(header.binaryblock) + bytes(4) + array.tobytes(order="F"))
    assert "its orientation is unknown" in rejected(folder).detail


def test_a_file_that_tells_no_orientation_is_taken_as_it_lies(folder: Path) -> None:
    save(folder, raw.nifti(HU, None, pixdim=[1, 0.75, 0.5, 1.5, 0, 0, 0, 0]))
    voxels, facts = read(folder)
    np.testing.assert_array_equal(voxels, HU.transpose(2, 0, 1))
    assert facts["orientation_before"] is None
    assert facts["spacing_mm"] == [1.5, 0.75, 0.5]


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int32", "float32", "float64", ">i2"])
def test_slope_and_intercept_of_the_header_are_applied_once(folder: Path, dtype: str) -> None:
    values = (HU + 1024).astype(dtype)
    save(folder, raw.nifti(values, scl_slope=1, scl_inter=-1024))
    voxels, facts = read(folder)
    np.testing.assert_array_equal(voxels, HU.transpose(2, 0, 1))
    assert facts["rescale"] == {"from": "header", "slope": 1, "intercept": -1024}
    expected = nibabel.load(folder / f"{NAME}.nii.gz").get_fdata()
    np.testing.assert_array_equal(voxels, expected.transpose(2, 0, 1))


@pytest.mark.parametrize("slope", [0, float("nan"), float("inf")])
def test_a_slope_that_is_none_means_that_nothing_is_rescaled(folder: Path, slope: float) -> None:
    save(folder, raw.nifti(HU, scl_slope=slope, scl_inter=7))
    np.testing.assert_array_equal(read(folder)[0], HU.transpose(2, 0, 1))


def test_a_broken_slope_is_applied_as_it_is(folder: Path) -> None:
    save(folder, raw.nifti((HU * 2).astype(np.int16), scl_slope=0.5, scl_inter=0))
    voxels, _ = read(folder)
    np.testing.assert_array_equal(voxels, HU.transpose(2, 0, 1))


def test_metadata_gives_slope_and_spacing(folder: Path) -> None:
    raw.tables(folder, [NAME], '1.0,-1024.0,"[0.5, 0.7]",3')
    save(folder, raw.nifti((HU + 1024).astype(np.int16), pixdim=[1, 1, 1, 1, 0, 0, 0, 0]))
    voxels, facts = read(folder, rescale="metadata", metadata=raw.METADATA)
    np.testing.assert_array_equal(voxels, HU.transpose(2, 0, 1))
    assert facts["spacing_mm"] == [3, 0.7, 0.5]
    assert facts["rescale"] == {"from": "metadata", "slope": 1, "intercept": -1024}


def test_a_double_rescale_is_named(folder: Path) -> None:
    """As CT-CLIP's code does with the second release of CT-RATE, whose voxels are HU."""
    raw.tables(folder, [NAME], '1,-1024,"[0.75, 0.75]",1.5')
    keys = {"rescale": "metadata", "metadata": raw.METADATA}
    for problem, data in {
        "HU before slope 1 and intercept -1024": raw.nifti(HU),
        "header has slope 1 and intercept -1024": raw.nifti((HU + 1024).astype(np.int16), scl_inter=-1024),
    }.items():
        save(folder, data)
        reject = rejected(folder, **keys)
        assert reject.reason == "volume.hu_range"
        assert "a double rescale" in reject.detail and problem in reject.detail
    save(folder, raw.nifti(HU))
    for rescale in ("header", "none"):
        np.testing.assert_array_equal(read(folder, rescale=rescale)[0], HU.transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("array", "problem"),
    [
        (np.maximum(HU, -900) - 1024, "rescaled twice"),
        (HU + 1024, "intercept was never applied"),
        ((HU / 1000).astype(np.float32), "HU / 1000"),
        (HU * 0, "every voxel is 0"),
        (HU.astype(np.int32) * 100, "beyond int16"),
    ],
)
def test_numbers_that_cannot_be_hu(folder: Path, array: np.ndarray, problem: str) -> None:
    save(folder, raw.nifti(array))
    reject = rejected(folder)
    assert reject.reason == "volume.hu_range"
    assert problem in reject.detail


@pytest.mark.parametrize(
    "fields",
    [
        {"pixdim": [1, 0.75, 0.75, 0, 0, 0, 0, 0]},
        {"pixdim": [1, 0.75, 0.75, np.nan, 0, 0, 0, 0]},
        {"pixdim": [1, -0.75, 0.75, 1.5, 0, 0, 0, 0]},
        {"pixdim": [1, 0.75, 0.75, 1500, 0, 0, 0, 0]},
        {"pixdim": [1, 1, 1, 1, 0, 0, 0, 0]},  # against the affine
    ],
)
def test_a_spacing_that_cannot_be(folder: Path, fields: dict[str, Any]) -> None:
    save(folder, raw.nifti(HU, **fields))
    assert rejected(folder).reason == "volume.spacing"


@pytest.mark.parametrize(
    "row", ['1,0,"[0.75, 0.75]",0', '1,0,"[0.75, 0.75]",', "1,0,,1.5", '1,0,"[0.75, -1]",1']
)
def test_a_spacing_in_metadata_that_cannot_be(folder: Path, row: str) -> None:
    raw.tables(folder, [NAME], row)
    assert rejected(folder, metadata=raw.METADATA).reason == "volume.spacing"


def test_metadata_without_the_volume(folder: Path) -> None:
    raw.tables(folder, ["other"])
    (folder / "reports.csv").write_text(f"VolumeName,Findings,Impression\n{NAME},a,b\n")
    assert rejected(folder, metadata=raw.METADATA, labels=None).reason == "volume.spacing"


def test_a_column_that_is_not_there_names_the_key(folder: Path) -> None:
    for option, rescale in (("spacing_z", "header"), ("slope", "metadata")):
        metadata = {**raw.METADATA, option: "ZSpace"}
        with pytest.raises(UsageError, match=rf"dataset\.source\.metadata\.{option}.*ZSpacing"):
            read(folder, metadata=metadata, rescale=rescale)
    assert read(folder, metadata={**raw.METADATA, "slope": "none"})[1]["spacing_mm"] == [1.5, 0.75, 0.75]


def _bomb() -> bytes:
    return raw.nifti(HU) + bytes(50_000_000)


def _claims(*sides: int) -> bytes:
    data = bytearray(raw.nifti(HU))
    data[40:56] = struct.pack("<8h", len(sides), *sides, *[1] * (7 - len(sides)))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (raw.nifti(HU[..., 0]), "volume.shape"),
        (raw.nifti(np.stack([HU, HU], -1)), "volume.shape"),
        (_claims(6, 0, 4), "volume.shape"),
        (_claims(6, -5, 4), "volume.shape"),
        (_claims(30000, 30000, 30000), "archive.bomb"),
        (_claims(60, 50, 40), "volume.undecodable"),
        (_bomb(), "archive.bomb"),
        (raw.nifti(HU.astype(np.complex64)), "volume.dtype"),
        (raw.nifti(np.zeros((6, 5, 4), [("R", "u1"), ("G", "u1"), ("B", "u1")])), "volume.dtype"),
        (raw.nifti(HU, datatype=1536, bitpix=128), "volume.dtype"),
        (raw.nifti(HU, datatype=12345), "volume.dtype"),
        (raw.nifti(np.where(HU > 900, np.nan, HU)), "volume.nonfinite"),
        (raw.nifti(np.where(HU > 900, np.inf, HU)), "volume.nonfinite"),
        (raw.nifti(HU, scl_inter=np.nan), "volume.hu_range"),
        (raw.nifti(HU, vox_offset=1e30), "volume.undecodable"),
        (raw.nifti(HU, magic=b"ni1"), "volume.undecodable"),
        (raw.nifti(HU)[:100], "volume.undecodable"),
        (raw.nifti(HU)[:-1], "volume.undecodable"),
        (b"", "volume.undecodable"),
        (b"<html>not found</html>", "volume.undecodable"),
    ],
)
def test_faults_of_a_file(folder: Path, data: bytes, expected: str) -> None:
    save(folder, data)
    tracemalloc.start()
    assert rejected(folder).reason == expected
    assert tracemalloc.get_traced_memory()[1] < 60_000_000, "no memory is taken for what a header claims"
    tracemalloc.stop()
    path = folder / f"{NAME}.nii.gz"
    path.write_bytes(data)
    assert rejected(folder).reason == expected, "neither where the file is not compressed"


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flip(data: bytes) -> bytes:
    at = len(data) - 6  # in gzip's CRC
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage", [_cut, _flip, lambda data: data[:3], lambda data: data[:2] + b"\0" + data[3:]]
)
def test_a_torn_gzip_is_a_reject(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    (folder / f"{NAME}.nii.gz").write_bytes(damage(gzip.compress(raw.nifti(HU))))
    assert rejected(folder).reason == "volume.undecodable"


def test_other_files_beside_are_no_samples(folder: Path) -> None:
    (folder / "notes.txt").write_text("x")
    (folder / f"._{NAME}.nii.gz").write_bytes(b"of a Mac")
    (folder / "p1_scan_0.nii").write_bytes(raw.nifti(HU))
    nifti = source(folder)
    assert [item.file for item in nifti.items(next(nifti.containers()))] == [
        f"{NAME}.nii.gz",
        "p1_scan_0.nii",
    ]


def test_a_folder_is_listed_once_for_its_samples(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bucket a list of many thousand files takes as many requests as it has pages."""
    listed: list[str] = []
    honest = LocalStore.entries

    def entries(store: LocalStore, below: str = "") -> tuple[list[str], list[str]]:
        listed.append(below)
        return honest(store, below)

    nifti = source(folder)
    monkeypatch.setattr(LocalStore, "entries", entries)
    assert len(list(nifti.items(next(nifti.containers())))) == 1 and listed == [""]


def test_an_empty_folder_names_the_key(folder: Path) -> None:
    (folder / f"{NAME}.nii.gz").unlink()
    nifti = source(folder)
    with pytest.raises(DataError, match=r"dataset\.source\.path.*holds no \.nii\.gz or \.nii file"):
        list(nifti.items(next(nifti.containers())))
