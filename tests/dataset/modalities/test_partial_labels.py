"""Tables of labels with holes, planted among the phantoms: what is rejected, what is kept, and what is said."""

from __future__ import annotations

import csv
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.cli import main
from tasks.core.config import dump
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.examples.phantoms import FINDINGS, phantoms
from tasks.dataset.init import config_text, survey
from tasks.dataset.preview import write_look
from tasks.dataset.repair.run import repair
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.manifest import read_manifest
from tests.dataset.building.prepared import published
from tests.dataset.examples.test_phantoms import config
from tests.dataset.init.kinds import config_of
from tests.flows.test_cli import tarmac

SCANS = 9
NODULE = "Lung nodule"
PLANTED = {0: "", 1: "nan", 2: "-1"}
"""What stands for the nodule in the first rows of the table."""
SKIP = "dataset.source.labels.missing=skip"
DATA_ALONE = ("train=null", "evaluate=null")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Phantoms of which three rows lack a label, one scan has no row, and two reports have no volume."""
    folder = tmp_path / "raw"
    folder.mkdir()
    assert phantoms(folder, 6) == SCANS
    write_labels(folder, rows_of(folder)[:-1], PLANTED)
    with (folder / "reports.csv").open("a") as file:
        file.write("gone_1.nii.gz,Lung nodule is present.,Gone.\ngone_2.nii.gz,None.,Gone.\n")
    return folder


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open() as file:
        return list(csv.DictReader(file))


def write_labels(folder: Path, rows: list[dict[str, str]], planted: dict[int, str]) -> None:
    for number, cell in planted.items():
        rows[number][NODULE] = cell
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def labels_in(version: Path) -> dict[str, Any]:
    """The labels of each sample, by the volume's name."""
    return {facts["volume_name"]: facts["labels"] for facts in facts_in(version)}


def facts_in(version: Path) -> Iterator[dict[str, Any]]:
    for path in version.glob("*/*.tar"):
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if member.name.endswith(".json") and file is not None:
                    yield json.loads(file.read())


def written(made: Config, tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(dump(made))
    return str(path)


def built_by_command(path: str, folder: Path) -> str:
    """Return what the command prints; it runs in a process of its own, as every flow of a test does."""
    done = tarmac("build", path, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_volume_that_lacks_a_label_is_rejected_unless_the_config_says_otherwise(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = config(folder, tmp_path / "out", "dataset.reject_budget=0.5")
    built = published(made)
    assert (built.accepted, built.rejects) == (SCANS - 4, {"labels.missing": 4})
    assert main(["rejects", str(built.version)]) == 0
    said = capsys.readouterr().out
    assert said.count(f"{NODULE}: no value; labels: {{missing: skip}} keeps the volume\n") == 2
    assert (
        said.count(f"{NODULE}: -1, which means uncertain; labels: {{missing: skip}} keeps the volume\n") == 1
    )
    assert said.count("no row in labels.csv; labels: {missing: skip} keeps the volume\n") == 1
    assert all(None not in labels.values() for labels in labels_in(built.version).values())


def test_with_skip_every_volume_is_kept_with_the_labels_that_it_has(folder: Path, tmp_path: Path) -> None:
    known = {row["VolumeName"]: row for row in rows_of(folder)}
    built = published(config(folder, tmp_path / "out", SKIP))
    assert (built.accepted, built.rejected) == (SCANS, 0)
    found = labels_in(built.version)
    assert all(list(labels) == sorted(FINDINGS) for labels in found.values()), "all name the same labels"
    unlabelled = found.keys() - known.keys()
    assert [found[name] for name in unlabelled] == [dict.fromkeys(FINDINGS)]
    for name, row in known.items():
        expected = {label: int(row[label]) if row[label] in ("0", "1") else None for label in FINDINGS}
        assert found[name] == expected
    assert sum(labels[NODULE] is None for labels in found.values()) == len(PLANTED) + 1
    page = write_look(built.version, tmp_path / "look.html").path.read_text()
    assert page.count(" of 3, 1 unknown") == 3 and "labels: none of 3, 3 unknown" in page


def test_a_version_with_unknown_labels_is_sound_and_mended_to_the_byte(folder: Path, tmp_path: Path) -> None:
    version = published(config(folder, tmp_path / "out", SKIP)).version
    assert verify(version, "full").ok
    shard = sorted(version.glob("train/*.tar"))[0]
    before = shard.read_bytes()
    shard.write_bytes(before[: len(before) // 2])
    assert not verify(version, "full").ok
    assert repair(tmp_path / "out").ok
    assert shard.read_bytes() == before and verify(version, "full").ok


@pytest.mark.parametrize("cell", ["maybe", "inf"])
def test_a_cell_that_is_no_number_is_a_reject_even_with_skip(folder: Path, tmp_path: Path, cell: str) -> None:
    write_labels(folder, rows_of(folder), {0: cell})
    built = build(config(folder, tmp_path / "out", SKIP, "dataset.reject_budget=0.5"))
    assert built.rejects == {"labels.missing": 1}


def test_a_filled_in_label_rewrites_only_its_shard(folder: Path, tmp_path: Path) -> None:
    made = config(folder, tmp_path / "out", SKIP, "dataset.shard.samples=2")
    first = published(made)
    write_labels(folder, rows_of(folder), {0: "1"})
    second = published(made, accept_loss=True)
    assert (second.shards_rewritten, second.replaced, first.shards > 2) == (1, 1, True)


def test_reports_without_a_volume_are_counted_in_plan_build_and_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = config(folder, tmp_path / "out", SKIP, *DATA_ALONE)
    path = written(made, tmp_path)
    line = "2 rows of reports.csv have no volume"
    assert main(["plan", path]) == 0
    assert f"          {line}\n" in capsys.readouterr().out
    assert f"  {line}\n" in built_by_command(path, tmp_path)
    version = tmp_path / "out/current"
    assert read_manifest(version).passed_over == {"rows of reports.csv": 2}
    assert line in write_look(version.resolve(), tmp_path / "look.html").path.read_text()
    assert "read as nothing" not in (version / "README.md").read_text(), "rows are no files"
    lines = (folder / "reports.csv").read_text().splitlines()
    (folder / "reports.csv").write_text("\n".join(lines[:-1]) + "\n")
    assert main(["plan", path]) == 0
    assert "1 row of reports.csv has no volume" in capsys.readouterr().out


@pytest.mark.proof
def test_of_private_data_the_screens_say_how_to_see_the_rejects(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = ("dataset.private=true", "dataset.reject_budget=0.5")
    made = config(folder, tmp_path / "out", *private, *DATA_ALONE)
    path, look = written(made, tmp_path), f"tarmac rejects {tmp_path / 'out'}"
    assert main(["plan", path]) == 0
    planned = capsys.readouterr().out
    assert f"the data is private, so no sample is named; once built, {look} names each" in planned
    done = built_by_command(path, tmp_path)
    assert "tarmac rejects out lists all" in done
    for said in (planned, done):
        assert "phantom_" not in said and "2 rows of the reports have no volume" in said


def test_init_proposes_skip_where_cells_are_empty(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    seen = survey("raw/nifti")
    assert seen.best.seen["labels"].endswith(
        "; 2 of 8 rows lack a label; 1 of 8 rows holds a -1, which means uncertain; "
        "3 labels: Cardiomegaly, Lung nodule, Pleural effusion"
    )
    assert "2 of 8 rows lack a label" in config_text(seen)
    proposed: Any = config_of(seen, tmp_path).dataset.source
    assert proposed.labels.missing == "skip"
    write_labels(folder, rows_of(folder), dict.fromkeys(PLANTED, "0"))
    whole: Any = config_of(survey("raw/nifti"), tmp_path).dataset.source
    assert whole.labels.missing == "reject"
    assert "missing" not in yaml.safe_dump(survey("raw/nifti").best.seen)


def test_a_label_that_no_row_knows_is_still_one(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    rows = rows_of(folder)
    write_labels(folder, rows, dict.fromkeys(range(len(rows)), ""))
    proposed = config_of(survey("raw/nifti"), tmp_path)
    built = build(proposed)
    assert built.accepted == SCANS
    assert all(labels[NODULE] is None for labels in labels_in(built.version).values())
    assert np.isin(
        [labels["Cardiomegaly"] for labels in labels_in(built.version).values()], [0, 1, None]
    ).all()
