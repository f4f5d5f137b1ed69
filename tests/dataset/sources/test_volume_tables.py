"""What tables say about volumes: whose row it is, and whether it says all that it should."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.dataset.modalities import MODALITIES
from tasks.dataset.sources import RawSample, Source, open_sources
from tasks.dataset.version.rejects import Reject
from tests.dataset import raw
from tests.dataset.raw import nifti

KEEPS = "labels: {missing: skip} keeps the volume"


def source(folder: Path, **keys: Any) -> Source:
    return open_sources(raw.volume_config(folder, folder / "out", source=keys).dataset)[0]


def listed(folder: Path, **keys: Any) -> dict[str, RawSample]:
    found = source(folder, **keys)
    return {item.file: item for container in found.containers() for item in found.items(container)}


def reports(folder: Path, *rows: str) -> None:
    (folder / "reports.csv").write_text("\n".join(["VolumeName,Findings,Impression", *rows]) + "\n")


def report_of(folder: Path, file: str, **keys: Any) -> str:
    """The volume's report, or why it has none."""
    item = listed(folder, **keys)[file]
    if item.fault is not None:
        return ": ".join(item.fault)
    config = raw.volume_config(folder, folder / "out", source=keys).dataset
    try:
        members = source(folder, **keys).read(item.file, item.content)
        return bytes(MODALITIES["volume_report"].take(members, config).members["txt"]).decode()
    except Reject as reject:
        return str(reject)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    raw.volumes(tmp_path / "ct", 2)
    return tmp_path / "ct"


@pytest.fixture
def alike(folder: Path) -> Path:
    """`p1/ct.npz`, `p2/ct.npz` and `p2/other.npz`."""
    for name in ("p1/ct", "p2/ct", "p2/other"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / "p0_scan_0.npz", folder / f"{name}.npz")
    for path in folder.glob("*.npz"):
        path.unlink()
    return folder


def test_files_of_one_name_are_told_apart_by_their_folders(alike: Path) -> None:
    reports(alike, "p1/ct.npz,first,", "./p2/ct,second,", "other,third,")
    found = {file: report_of(alike, file, labels=None) for file in ("p1/ct.npz", "p2/ct.npz", "p2/other.npz")}
    assert found == {"p1/ct.npz": "first", "p2/ct.npz": "second", "p2/other.npz": "third"}


def test_a_report_of_a_name_that_two_files_have_is_nobodys(alike: Path) -> None:
    reports(alike, "ct.npz,whose?,", "other.npz,mine,")
    why = "report.missing: 2 files share its name, and reports.csv has no path to tell them apart"
    for file in ("p1/ct.npz", "p2/ct.npz"):
        assert report_of(alike, file, labels=None) == why
    assert report_of(alike, "p2/other.npz", labels=None) == "mine"
    reports(alike, "p1/ct.npz,first,", "p2/ct.npz,second,")
    (alike / "labels.csv").write_text("VolumeName,effusion\nct,1\n")
    assert report_of(alike, "p1/ct.npz").startswith("labels.missing: 2 files share its name")


def test_a_file_in_the_sources_own_folder_is_no_exception(alike: Path) -> None:
    shutil.copy(alike / "p1/ct.npz", alike / "ct.npz")
    reports(alike, "ct,whose?,")
    assert report_of(alike, "ct.npz", labels=None).startswith("report.missing: 3 files share")
    reports(alike, "ct,mine,", "p1/ct,first,")
    found = [report_of(alike, file, labels=None) for file in ("ct.npz", "p1/ct.npz", "p2/ct.npz")]
    assert found[:2] == ["mine", "first"]
    assert found[2].startswith("report.missing: 3 files share"), "its own row is not there"


def write_labels(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("name", ["labels.csv", "labels.tsv", "labels.jsonl", "labels.parquet"])
def test_a_row_that_lacks_a_label_is_not_complete(folder: Path, name: str) -> None:
    whole = {"VolumeName": "p0_scan_0", "effusion": 0, "nodule": 1}
    short = {"VolumeName": "p0_scan_1", "effusion": 1}
    write_labels(folder / name, [whole, short])
    if name.endswith(".tsv"):
        (folder / name).write_text((folder / name).read_text().replace(",", "\t"))
    labels = {"labels": {"path": name, "key": "VolumeName"}}
    assert report_of(folder, "p0_scan_0.npz", **labels) == "Clear lungs. Healthy p0_scan_0."
    assert report_of(folder, "p0_scan_1.npz", **labels).startswith("labels.missing: nodule: no value")


@pytest.mark.parametrize("name", ["labels.jsonl", "labels.parquet"])
@pytest.mark.parametrize("cell", [{}, {"nodule": None}, {"nodule": float("nan")}, {"nodule": -1.0}])
def test_with_skip_a_row_that_lacks_a_label_gives_the_others(
    folder: Path, name: str, cell: dict[str, Any]
) -> None:
    whole = {"VolumeName": "p0_scan_0", "effusion": 0, "nodule": 1.0}
    write_labels(folder / name, [whole, {"VolumeName": "p0_scan_1", "effusion": 1, **cell}])
    labels = {"labels": {"path": name, "key": "VolumeName", "missing": "skip"}}
    item = listed(folder, **labels)["p0_scan_1.npz"]
    members = source(folder, **labels).read(item.file, item.content)
    assert json.loads(bytes(members["json"]))["labels"] == {"effusion": 1, "nodule": None}


def test_rows_that_contradict_each_other_are_a_reject_even_with_skip(folder: Path) -> None:
    (folder / "labels.csv").write_text("VolumeName,nodule\np0_scan_0,1\np0_scan_0,\n")
    labels = {"labels": {"path": "labels.csv", "key": "VolumeName", "missing": "skip"}}
    expected = "labels.missing: 2 different rows in labels.csv"
    assert report_of(folder, "p0_scan_0.npz", **labels) == expected


def test_a_row_of_a_path_that_is_not_there_has_no_volume(alike: Path) -> None:
    reports(alike, "p1/ct.npz,first,", "p3/ct.npz,gone,", "other,mine,", "third,gone,")
    found = source(alike, labels=None)
    assert sum(1 for container in found.containers() for _ in found.items(container)) == 3
    assert found.passed_over["rows of reports.csv"] == 2


def test_a_label_of_one_table_is_one_of_all(folder: Path) -> None:
    write_labels(folder / "a.csv", [{"VolumeName": "p0_scan_0", "effusion": 0}])
    write_labels(folder / "b.jsonl", [{"VolumeName": "p0_scan_1", "nodule": 1, "effusion": 0}])
    labels = {"labels": {"path": "{a.csv,b.jsonl}", "key": "VolumeName"}}
    assert report_of(folder, "p0_scan_0.npz", **labels).startswith("labels.missing: nodule: no value")
    assert report_of(folder, "p0_scan_1.npz", **labels).startswith("Clear lungs.")


def test_what_is_not_given_is_no_part_of_a_report(folder: Path) -> None:
    reports(folder, "p0_scan_0,Not given., Clear. ", "p0_scan_1,Not given.,Not given.")
    assert report_of(folder, "p0_scan_0.npz") == "Clear."
    assert report_of(folder, "p0_scan_1.npz") == "report.missing: the report is empty"


def test_details_are_the_same_wherever_the_tables_lie(folder: Path, tmp_path: Path) -> None:
    """A reject is kept with its detail, and a dataset's digest covers it."""
    tables = tmp_path / "tables"
    tables.mkdir()
    nifti.tables(folder, ["p0_scan_1"])
    for name in ("reports", "labels", "metadata"):
        shutil.move(folder / f"{name}.csv", tables / f"{name}.csv")
    keys = {
        "reports": {"path": str(tables / "reports.csv"), "key": "VolumeName", "text": ["Findings"]},
        "labels": {"path": str(tables / "labels.csv"), "key": "VolumeName"},
        "metadata": {"path": str(tables / "metadata.csv"), "key": "VolumeName"},
    }
    assert report_of(folder, "p0_scan_0.npz", **keys) == "report.missing: no row in reports.csv"
    (tables / "reports.csv").write_text("VolumeName,Findings\np0_scan_0,a\n")
    assert report_of(folder, "p0_scan_0.npz", **keys) == f"labels.missing: no row in labels.csv; {KEEPS}"
    del keys["labels"]
    assert report_of(folder, "p0_scan_0.npz", **keys, labels=None) == "volume.spacing: no row in metadata.csv"
    (tables / "metadata.csv").write_text("VolumeName,XYSpacing,ZSpacing\np0_scan_0,,\n")
    detail = report_of(folder, "p0_scan_0.npz", **keys, labels=None)
    assert detail.endswith("in metadata.csv") and str(tmp_path) not in detail


def test_a_column_that_nobody_asked_for_changes_no_sample(folder: Path) -> None:
    nifti.tables(folder, ["p0_scan_0", "p0_scan_1"])
    before = listed(folder, metadata=nifti.METADATA)
    path = folder / "metadata.csv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},Manufacturer", *(f"{row},Some" for row in rows)]) + "\n")
    assert listed(folder, metadata=nifti.METADATA) == before
    path.write_text(path.read_text().replace(",1.5,", ",2.5,"))
    assert listed(folder, metadata=nifti.METADATA) != before
