"""Looking single samples up: the rejects of a build, and where a sample comes from and what became of it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.dataset.building.builder import build
from tasks.reporting.report import write_report
from tasks.runs import record
from tasks.runs.data import version_path
from tests.dataset import raw
from tests.dataset.preview.pages import a_version, page_of, words
from tests.dataset.quality import planted
from tests.flows.birds import json_of, output_of, published
from tests.reporting.finished_run import finished_run

REJECTS = [("gone.png", "a picture", "x"), ("empty.png", "a picture", "x"), ("lost.png", "a picture", "x")]


@pytest.fixture
def rejected(birds: Path) -> Path:
    """The project with two missing pictures and one without bytes; returns the dataset."""
    raw.write_table(birds / "birds", [*raw.pictures(birds / "birds", 60), *REJECTS])
    (birds / "birds" / "empty.png").touch()
    published("birds.yaml")
    return birds / "data" / "birds"


def test_rejects_are_a_table_for_people(rejected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output_of(capsys, "rejects", "data/birds") == (
        "3 rejects: 2 member.missing, 1 image.empty\n"
        "REASON          SOURCE           ORIGINAL KEY  DETAIL\n"
        "member.missing  captions.csv:62  gone.png      no such file: 'gone.png'\n"
        "image.empty     captions.csv:63  empty.png     0 bytes\n"
        "member.missing  captions.csv:64  lost.png      no such file: 'lost.png'\n"
    )
    only = output_of(capsys, "rejects", "data/birds", "--reason", "image.empty").splitlines()
    assert only[0] == "1 reject: 1 image.empty" and len(only) == 3


def test_rejects_are_csv_or_json_for_programs(rejected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(capsys, "rejects", "data/birds", "--csv", "--reason", "member.missing")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["source"] for row in rows] == ["captions.csv:62", "captions.csv:64"]
    assert json_of(capsys, "rejects", "data/birds", "--reason", "member.missing")["rejects"] == rows
    assert len(json_of(capsys, "rejects", "data/birds")["rejects"]) == 3


def test_an_unknown_reason_lists_those_that_are_there(
    rejected: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rejects", "data/birds", "--reason", "image.gone"]) == 2
    assert capsys.readouterr().err == (
        "✗ --reason: no sample was rejected as 'image.gone'; there are: member.missing (2), image.empty (1)\n"
    )
    assert main(["rejects", "data/birds", "--csv", "--json"]) == 2
    assert capsys.readouterr().out.startswith('{"ok": false')


def test_no_rejects_is_said_so(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published("birds.yaml")
    assert output_of(capsys, "rejects", "data/birds") == "no sample was rejected\n"
    assert output_of(capsys, "rejects", "data/birds", "--csv") == "reason,source,original_key,detail\n"


def test_a_table_of_rejects_that_is_not_there_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rejects.parquet"
    assert main(["rejects", str(path)]) == 1
    assert capsys.readouterr().err == (
        f"✗ there is no file {path}; if a version lacks it, see `tarmac verify`\n"
    )


@pytest.mark.parametrize("indent", [None, 2])
def test_a_sample_of_a_json_list_is_found_by_its_number(
    indent: int | None, birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [dict(zip(("file", "caption"), row, strict=False)) for row in raw.pictures(birds / "birds", 60)]
    (birds / "birds" / "list.json").write_text(
        json.dumps([*rows, {"file": "x.png", "caption": "x"}], indent=indent)
    )
    text = Path("birds.yaml").read_text()
    Path("birds.yaml").write_text(text.replace("captions.csv", "list.json"))
    published("birds.yaml")
    for number in (1, 17):
        found = json_of(capsys, "trace", f"list.json:{number}", "data/birds")
        assert [one["original_key"] for one in found["samples"]] == [rows[number - 1]["file"]]
    assert "list.json:61 " in output_of(capsys, "rejects", "data/birds")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line about a wrong command."""
    assert main(list(arguments)) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_a_wrong_prediction_leads_to_its_raw_file_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = finished_run(Path())
    write_report(run)
    tags = page_of(run.report)
    assert f"tarmac trace KEY {run.name}" in words(tags)
    wrong = re.search(r"✗ wrong: says .*? (\S+) images/(\d+)\.png, captions\.csv:(\d+)", words(tags))
    assert wrong is not None
    key, number, line = wrong.groups()

    traced = output_of(capsys, "trace", key, run.name)
    assert traced.startswith(f"{key}  val, sample 1  version ")
    assert f"  source     captions.csv:{line}\n  original   images/{number}.png\n" in traced
    for step in (200, 400, 600):
        assert f"  zero_shot  step {step}: ✗ wrong  top1 0\n             says 'one', is 'two'\n" in traced

    table = (tmp_path / "raw" / "captions.csv").read_text(encoding="utf-8").splitlines()
    assert table[int(line) - 1].startswith(f"images/{number}.png,")
    for back in (
        f"captions.csv:{line}",
        f"raw/captions.csv:{line}",
        f"images/{number}.png",
        str(tmp_path / "raw" / "images" / f"{number}.png"),
        f"{number}.png",
    ):
        found = json_of(capsys, "trace", back, run.name)
        assert [one["key"] for one in found["samples"]] == [key]
        [said] = found["evaluations"]
        assert [one["is_right"] for one in said["judgements"]] == [False] * 3


def test_the_offset_is_that_of_the_sample_in_its_shard(
    birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published("birds.yaml")
    [one] = json_of(capsys, "trace", "0007.png", "data/birds")["samples"]
    shard = (birds / "data" / "birds" / "current" / one["shard"]).read_bytes()
    span = shard[one["offset"] : one["offset"] + one["bytes"]]
    assert span.startswith(b"0007.json") and (birds / "birds" / "0007.png").read_bytes() in span
    assert one["members"] == {"json": 20, "png": len(raw.png(7)), "txt": 9} and one["caption"] == "picture 7"


def test_a_trained_sample_was_not_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = finished_run(Path())
    version = version_path(record.load_record(run).data[0])
    key = next(iter(raw_keys(version, "train")))
    assert "  evaluated  by none of 3 evaluations: it is in train" in output_of(capsys, "trace", key, run.id)
    assert "evaluat" not in output_of(capsys, "trace", key)  # the only dataset here, and no run


def raw_keys(version: Path, split: str) -> list[str]:
    from tasks.dataset.version.tables import read_pieces

    return [
        key
        for piece in read_pieces(version / f"samples/{split}.parquet", ["key"])
        for key in piece[0].to_pylist()
    ]


def test_a_beginning_is_enough_if_it_is_unique(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published("birds.yaml")
    assert output_of(capsys, "trace", "005", "data/birds", code=2) == ""
    assert re.fullmatch(
        r"✗ KEY: '005' begins 10 names: 005\d, 005\d, 005\d, …; give more of it",
        error_of(capsys, "trace", "005"),
    )
    assert output_of(capsys, "trace", "0059.", "data/birds").startswith("0059  train")
    assert error_of(capsys, "trace", "0O59", "data/birds").endswith("is named '0O59'; did you mean 0059?")
    assert error_of(capsys, "trace", "Ω", "data/birds").endswith(
        "give its key, its path or its place in a table"
    )
    assert error_of(capsys, "trace", "0059", "nowhere") == (
        "✗ PLACE: nowhere is no folder of a dataset; RUN: no run in runs starts with 'nowhere'; there are: none yet"
    )


def test_without_a_place_the_only_dataset_is_meant(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert error_of(capsys, "trace", "0001") == (
        "✗ PLACE is missing: give a dataset or a run; there are: none in data, and none of a run in runs"
    )
    published("birds.yaml")
    assert output_of(capsys, "trace", "0001").startswith("0001  train")
    (birds / "others.yaml").write_text(
        (birds / "birds.yaml").read_text().replace("data/birds", "data/others")
    )
    published("others.yaml")
    assert error_of(capsys, "trace", "0001").endswith("there are: data/birds, data/others")


def test_a_reject_is_traced_by_any_of_its_names(rejected: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gone.png", "captions.csv:62", "birds/gone.png", "gon"):
        assert output_of(capsys, "trace", name, "data/birds") == (
            "✗ rejected as member.missing: gone.png\n"
            "  source     captions.csv:62\n  file       gone.png\n  detail     no such file: 'gone.png'\n"
        )
    assert json_of(capsys, "trace", "gone.png", "data/birds")["rejects"][0]["reason"] == "member.missing"


def test_all_samples_of_a_file_are_traced(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five captions of one picture are five samples, whose keys do not have its path."""
    rows = raw.pictures(birds / "birds", 4)
    raw.write_table(
        birds / "birds",
        [(name, f"{caption}, {n}", f"id{n}-{name[:4]}") for name, caption, _ in rows for n in range(5)],
    )
    text = (birds / "birds.yaml").read_text().replace("caption: caption}", "caption: caption, key: label}")
    (birds / "birds.yaml").write_text(text)
    published("birds.yaml")
    found = json_of(capsys, "trace", "birds/0002.png", "data/birds")["samples"]
    assert sorted(one["key"] for one in found) == [f"id{n}-0002" for n in range(5)]
    assert output_of(capsys, "trace", "birds/0002.png", "data/birds").count(", sample ") == 5


def test_of_files_with_one_name_the_folder_decides(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (birds / "birds" / "wild").mkdir()
    (birds / "birds" / "wild" / "0001.png").write_bytes(raw.png(99))
    raw.write_table(
        birds / "birds", [*raw.pictures(birds / "birds", 4), ("wild/0001.png", "another picture", "x")]
    )
    published("birds.yaml")
    for path, text in (("birds/wild/0001.png", "another picture"), ("birds/0001.png", "picture 1")):
        [one] = json_of(capsys, "trace", path, "data/birds")["samples"]
        assert one["caption"] == text


def test_copies_are_found_in_all_splits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples, _ = planted.planted("near copies")
    first = next(one for one in samples if one.name == "copy0.jpg")
    samples.append(planted.Sample("again.jpg", first.content, "the same bytes once more"))
    planted.write(samples, tmp_path / "raw")
    version = build(raw.config(tmp_path / "raw", tmp_path / "data", splits={"val": 0.5})).version
    [one] = json_of(capsys, "trace", "copy0.jpg", str(version))["samples"]
    copies = {copy["key"]: copy for copy in one["copies"]}
    assert copies["again"]["is_exact"] and len(copies) == 2
    [original] = (copy for key, copy in copies.items() if key != "again")
    assert not original["is_exact"] and original["source"].startswith("captions.csv:")
    assert sum(one["copies_by_split"].values()) == 2
    shown = output_of(capsys, "trace", "copy0.jpg", str(version))
    assert "equal, captions.csv:" in shown and "again (" in shown


def test_of_private_data_only_what_was_asked_for_is_shown(
    birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [*raw.pictures(birds / "birds", 20), ("copy.png", "a secret caption", "a secret label")]
    (birds / "birds" / "copy.png").write_bytes(raw.png(3))
    raw.write_table(birds / "birds", rows)
    text = (
        (birds / "birds.yaml")
        .read_text()
        .replace("modality:", "private: true\n  splits: {val: 0.3, group_by: label}\n  modality:")
    )
    (birds / "birds.yaml").write_text(text)
    published("birds.yaml")
    traced = output_of(capsys, "trace", "copy.png", "data/birds")
    assert "  source     captions.csv:22\n" in traced and "measured   width 12" in traced and " in " in traced
    printed: Any = json_of(capsys, "trace", "copy.png", "data/birds")
    assert printed["samples"][0]["copies_by_split"] and not printed["samples"][0]["copies"]
    for text in (traced, str(printed)):
        assert "secret" not in text and "0003" not in text
    begun = error_of(capsys, "trace", "copy.p", "data/birds")
    assert "fits or begins 1 name; of private data give the whole key of one sample" in begun
    assert "0003" not in error_of(capsys, "trace", "000", "data/birds")
    assert "0003" not in error_of(capsys, "trace", "00O3", "data/birds")


def test_a_damaged_shard_does_not_hide_where_the_sample_came_from(
    birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published("birds.yaml")
    for tar in (birds / "data/birds/current").glob("*/*.tar"):
        tar.unlink()
    traced = output_of(capsys, "trace", "0007", "data/birds")
    assert "  source     captions.csv:9\n" in traced
    assert re.search(r"members    val/00000\d\.tar cannot be read: No such file", traced)


def test_a_version_without_places_and_measures_is_traced_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = a_version(tmp_path)
    assert "  text       caption 17\n" in output_of(capsys, "trace", "patient-Meier_0017", str(version))
    assert "rejected as image.empty" in output_of(capsys, "trace", "secret.csv:3", str(version))
