"""The radiologist: CT volumes whose labels are known in part, reports of volumes that are not there, a torn file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tasks.core.files import read_json
from tasks.dataset.examples.phantoms import phantoms
from tests.system.first_days.person import Person

pytestmark = pytest.mark.system
PATIENTS = 24
QUICK = {"dataset.splits.val": 0.4, "loader.workers": 0, "loader.prefetch": 2, "track.mode": "disabled"}
QUICK |= {
    "train.steps": 10,
    "train.checkpoint_every": 10,
    "evaluate.every": 10,
    "evaluate.tasks": "[multilabel]",
}


def scans(folder: Path) -> None:
    """36 scans of 24 patients: of 23 nobody has looked for nodules, one has no labels, and one file is torn."""
    folder.mkdir()
    assert phantoms(folder, PATIENTS) == 36
    head, *rows = [line.split(",") for line in (folder / "labels.csv").read_text().splitlines()]
    for row in (one for number, one in enumerate(rows) if number % 3):
        row[head.index("Lung nodule")] = ""
    (folder / "labels.csv").write_text("\n".join(",".join(row) for row in (head, *rows[:-1])) + "\n")
    with (folder / "reports.csv").open("a") as file:
        file.writelines(f"phantom_90{number}_a_1.nii.gz,Lost.,Lost.\n" for number in range(2))
    torn = folder / "nifti/phantom_003_a_1.nii.gz"
    os.truncate(torn, torn.stat().st_size // 2)
    for path in (folder / "npz").iterdir():
        path.unlink()


@pytest.mark.proof
def test_scans_with_some_labels_are_trained_on_and_judged(person: Person) -> None:
    """The data are private by themselves, so that the screens show counts alone, and what shows more."""
    scans(person.folder / "raw")
    found = person.types("init", "raw")
    assert "reports   VolumeName in reports.csv matches 36 of 36 files" in found
    assert (
        "labels    VolumeName in labels.csv matches 35 of 36 files; 23 of 35 rows lack a label; 3 labels:"
        in found
    )
    written = (person.folder / "configs/raw.yaml").read_text()
    assert (
        "labels: {path: labels.csv, key: VolumeName, missing: skip}" in written and "private: true" in written
    )
    planned = person.types("plan", "configs/raw.yaml")
    assert "36 raw samples: 0 filtered, 0 rejected unopened" in planned
    assert "          2 rows of the reports have no volume\n" in planned
    strict = person.types(
        "plan", "configs/raw.yaml", "--set", "dataset.source.labels.missing=reject", expecting=1
    )
    assert re.search(r"the build would stop: at least \d+ of", strict) and "labels.missing" in strict

    changes = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    shown = person.types("run", "configs/raw.yaml", *changes)
    assert "36 read = 35 accepted + 1 rejected" in shown
    assert re.search(r"Findings: Mean AUROC \S+ .*12 held-out samples; chance 0\.50\)", shown)
    (run,) = (one.parent for one in person.folder.glob("runs/*/run.json"))
    judged = read_json(run / "evaluations/step_10/multilabel.json")
    assert judged["samples_by_label"]["Lung nodule"] < judged["samples_by_label"]["Cardiomegaly"] <= 12
    page = (run / "report.html").read_text()
    assert "8 of 12 samples of split val lack some of the labels" in page and "Mean AUROC" in page
    assert "phantom_0" not in page, "the dataset is private"

    again = person.types("build", "configs/raw.yaml", "--set", "dataset.splits.val=0.4")
    assert (
        "36 read = 35 accepted + 0 filtered + 1 rejected (2.8%, budget 5.0%)\n      1 volume.undecodable\n"
        in again
    )
    assert "  2 rows of the reports have no volume\n" in again
    torn = "volume.undecodable  nifti/phantom_003_a_1.nii.gz  nifti/phantom_003_a_1.nii.gz  torn gzip"
    assert torn in person.types("rejects", "data/raw")
    labels = [json.loads(one["json"])["labels"] for one in person.samples("train")]
    assert any(one["Lung nodule"] is None for one in labels) and all("Cardiomegaly" in one for one in labels)
