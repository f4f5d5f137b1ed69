"""Whole builds of volumes: every fault is counted by its reason, and the rest becomes a sound dataset."""

import importlib
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tasks.core.config import validate
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.formats.volumes import stored
from tasks.dataset.verify.verifier import verify
from tests.dataset import raw
from tests.dataset.raw import nifti

HU = nifti.stored(9)
RULES = {"window": [-1000, 1000], "shape": [4, 8, 8]}


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr_0.npy", content)
    return file.getvalue()


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, arr_0=array)
    return file.getvalue()


def unpacked(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


FAULTS: dict[str, dict[str, list[bytes]]] = {
    "npz": {
        "volume.undecodable": [b"", b"<html>", saved(HU)[:-40], zipped(b"no array")],
        "volume.pickle": [pickle.dumps(1), saved(np.array([{}], object))],
        "volume.shape": [saved(HU[0]), saved(HU[None])],
        "volume.dtype": [saved(HU * 1j)],
        "volume.nonfinite": [saved(HU * np.nan)],
        "volume.hu_range": [saved(HU - 1024), saved(HU + 1024), saved(HU / 1000), saved(HU * 40)],
        "archive.bomb": [zipped(unpacked(HU) + bytes(9_000_000))],
    },
    "nifti": {
        "volume.undecodable": [b"", b"<html>", nifti.packed(nifti.nifti(HU))[:-40]],
        "volume.shape": [nifti.nifti(HU[0]), nifti.nifti(np.stack([HU, HU], -1))],
        "volume.dtype": [nifti.nifti(HU.astype(np.complex64))],
        "volume.nonfinite": [nifti.nifti(HU * np.nan)],
        "volume.hu_range": [nifti.nifti(HU - 1024), nifti.nifti(HU, scl_inter=-1024)],
        "volume.spacing": [nifti.nifti(HU, pixdim=[1, 0.75, 0.75, 0, 0, 0, 0, 0])],
        "archive.bomb": [nifti.packed(nifti.nifti(HU) + bytes(30_000_000))],
    },
}


def made(kind: str, folder: Path, **dataset: Any) -> Config:
    """Six sound volumes."""
    source = importlib.import_module(f"tests.dataset.raw.{kind}").make(folder).dataset.source
    return raw.volume_config(
        folder, folder.parent / "out", source=source.model_dump(), volume=RULES, **dataset
    )


def file_of(kind: str, folder: Path, name: str) -> Path:
    return folder / (f"{name}.npz" if kind == "npz" else f"p0/{name}.nii.gz")


@pytest.mark.parametrize("kind", ["npz", "nifti"])
def test_every_fault_is_counted_by_its_reason(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    config = made(kind, folder, reject_budget=0.95)
    expected = {"report.missing": 1, "labels.missing": 1}
    names = []
    for reason, files in FAULTS[kind].items():
        expected[reason] = expected.get(reason, 0) + len(files)
        for number, content in enumerate(files):
            names.append(f"p9_{reason.replace('.', '_')}_{number}")
            file_of(kind, folder, names[-1]).write_bytes(content)
    sound = file_of(kind, folder, "p0_scan_0").read_bytes()
    for name in ("p9_unreported", "p9_unlabelled"):
        file_of(kind, folder, name).write_bytes(sound)
    with (folder / "reports.csv").open("a") as table:
        table.writelines(f"{name}.nii.gz,Clear.,Healthy.\n" for name in (*names, "p9_unlabelled"))
    with (folder / "labels.csv").open("a") as table:
        table.writelines(f"{name}.nii.gz,0,1\n" for name in (*names, "p9_unreported"))
    result = build(config)
    assert dict(result.rejects) == expected
    assert result.accepted == 6
    assert verify(result.version, "full").ok
    details = pq.read_table(result.version / "rejects.parquet").column("detail").to_pylist()
    assert all(details) and str(tmp_path) not in "".join(details)


def test_a_mended_report_in_one_of_several_tables_is_taken_over_and_nothing_else_is_done(
    tmp_path: Path,
) -> None:
    block = made("npz", tmp_path / "raw", shard={"samples": 1}).dataset.model_dump(mode="json")
    head, *rows = (tmp_path / "raw/reports.csv").read_text().splitlines()
    (tmp_path / "raw/reports.csv").unlink()
    for name, part in (("train", rows[:4]), ("valid", rows[4:])):
        (tmp_path / f"raw/{name}_reports.csv").write_text("\n".join([head, *part]) + "\n")
    block["source"]["reports"]["path"] = "{train,valid}_reports.csv"
    config = validate({"name": "test", "dataset": block}, "test")
    first = build(config)
    assert (first.accepted, first.shards_rewritten) == (6, 6)
    table = tmp_path / "raw/train_reports.csv"
    table.write_text(table.read_text().replace("Healthy p1_scan_0.", "A nodule."))
    assert build(config).shards_rewritten == 1


def test_statistics_stand_beside_the_samples(tmp_path: Path) -> None:
    version = build(made("nifti", tmp_path / "raw", splits={})).version
    rows = pq.read_table(version / "samples/train.parquet").to_pylist()
    assert len(rows) == 6
    for row in rows:
        assert (row["depth"], row["height"], row["width"]) == (4, 8, 8)
        assert (row["spacing_z"], row["spacing_y"], row["spacing_x"]) == (1.5, 0.75, 0.75)
        assert -1000 <= row["hu_p50"] <= 1000
        assert row["pad_fraction"] == pytest.approx(1 - 6 * 5 / 64)


@pytest.mark.parametrize(
    ("kind", "package", "key"),
    [("npz", "blosc2", "dataset.volume.encode"), ("nifti", "nibabel", "dataset.source.kind")],
)
def test_a_missing_package_is_told_before_anything_is_read(
    kind: str, package: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = made(kind, tmp_path / "raw")
    find: Callable[[str], Any] = stored.find_spec
    monkeypatch.setattr(stored, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(UsageError, match=rf"{key}.*needs {package}: pip install 'tarmac\[ct\]'"):
        build(config)


def test_a_field_named_like_a_fact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"fields\.window.*rename"):
        raw.volume_config(tmp_path, tmp_path / "out", source={"fields": {"window": "(.)"}})
