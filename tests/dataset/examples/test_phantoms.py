import csv
import hashlib
import json
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nibabel
import numpy as np
import pytest

from tasks.core.config import load_config, validate
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.examples import write_example
from tasks.dataset.examples.phantoms import FINDINGS, phantoms
from tasks.dataset.verify.verifier import verify

CONFIG = Path(__file__).parents[3] / "configs/phantoms-ct.yaml"
PATIENTS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantoms")
    assert phantoms(folder, PATIENTS) == 9
    return folder


def config(folder: Path, output: Path, *overrides: str) -> Config:
    return load_config(
        CONFIG, [f"dataset.source.path={folder}/nifti", f"dataset.output={output}", *overrides]
    )


def test_the_same_files_each_time_and_never_over_others(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    phantoms(tmp_path / "again", 2)
    for path in (tmp_path / "again").glob("n*/*"):
        assert path.read_bytes() == (folder / path.relative_to(tmp_path / "again")).read_bytes()
    for path in (tmp_path / "again").glob("*.csv"):
        assert (folder / path.name).read_bytes().startswith(path.read_bytes())
    assert write_example("phantoms", folder) == 0
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < PATIENTS * 300_000


def test_what_the_report_says_is_what_the_labels_say(folder: Path) -> None:
    reports = {row["VolumeName"]: row for row in csv.DictReader((folder / "reports.csv").open())}
    labels = list(csv.DictReader((folder / "labels.csv").open()))
    assert len(labels) == 9 and set(labels[0]) == {"VolumeName", *FINDINGS}
    for row in labels:
        for name in FINDINGS:
            assert (name in reports[row["VolumeName"]]["Impressions_EN"]) == (row[name] == "1")
    assert all(len({row[name] for row in labels}) == 2 for name in FINDINGS), "each is there, and not there"


def test_labels_show_in_the_voxels(folder: Path) -> None:
    """Fluid lies where lung would be."""
    lung = {"0": [], "1": []}
    for row in csv.DictReader((folder / "labels.csv").open()):
        voxels = np.load(folder / "npz" / row["VolumeName"].replace(".nii.gz", ".npz"))["arr_0"] * 1000
        lung[row["Pleural effusion"]].append(np.mean(np.abs(voxels + 850) < 60))
    assert np.mean(lung["1"]) < 0.9 * np.mean(lung["0"])


def test_scans_come_as_scanners_store_them(folder: Path) -> None:
    codes = Counter()
    for path in (folder / "nifti").iterdir():
        image = nibabel.load(path)
        codes["".join(nibabel.aff2axcodes(image.affine))] += 1
        assert image.dataobj.get_unscaled().min() >= 0 and image.get_fdata().min() == -1000
    assert set(codes) == {"LPS", "RAS"}


def test_both_formats_become_the_same_dataset_whose_patients_stand_in_one_split(
    folder: Path, tmp_path: Path
) -> None:
    built = build(config(folder, tmp_path / "a", "dataset.splits.val=0.5"))
    assert (built.accepted, built.rejected) == (9, 0)
    assert verify(built.version, "full").ok
    again = build(npz_config(folder, tmp_path / "b"))
    assert (again.accepted, again.rejected) == (9, 0)
    assert volumes(built.version) == volumes(again.version)
    sides: dict[str, set[str]] = {}
    for split, name, content in members(built.version):
        if name.endswith(".json"):
            sides.setdefault(json.loads(content)["patient"], set()).add(split)
    assert len(sides) == PATIENTS
    assert all(len(where) == 1 for where in sides.values())
    assert set.union(*sides.values()) == {"train", "val"}


def npz_config(folder: Path, output: Path) -> Config:
    block = load_config(CONFIG).model_dump(mode="json")["dataset"]
    source = {name: block["source"][name] for name in ("fields", "reports", "labels")}
    source |= {"kind": "npz", "path": f"{folder}/npz", "axes": "zxy", "scale": 1000}
    source["metadata"] = {"path": "../metadata.csv", "key": "VolumeName"}
    return validate({"name": "npz", "dataset": {**block, "source": source, "output": str(output)}}, "test")


def members(version: Path) -> Iterator[tuple[str, str, bytes]]:
    """Split, name and content of every member of the version's shards."""
    for path in sorted(version.glob("*/*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                yield path.parent.name, member.name, file.read()


def volumes(version: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256(content).hexdigest()
        for _, name, content in members(version)
        if name.endswith(".volume.b2nd")
    }
