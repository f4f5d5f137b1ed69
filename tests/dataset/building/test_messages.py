"""The messages about usual mistakes in raw data name the file, the cause and the remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.core.config import dump
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.init import survey
from tasks.dataset.verify.verifier import verify
from tasks.dataset.version.manifest import read_manifest
from tasks.dataset.version.rejects import reject_lines
from tests.dataset import raw
from tests.dataset.init import kinds
from tests.dataset.init.kinds import config_of, taken
from tests.dataset.raw import chat, shards, table

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d7a" * 16 + b"\nsize 12345\n"
PULL = "git lfs pull"


def screen_of(config: Config) -> str:
    """The lines on rejects of a build."""
    version = build(config).version
    return "\n".join(reject_lines(version, read_manifest(version).rejects, config.dataset.private))


def plan_of(config: Config, folder: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    path = folder / "config.yaml"
    path.write_text(dump(config))
    assert main(["plan", str(path)]) == code
    return capsys.readouterr().out


def restarting(folder: Path) -> Path:
    folder.mkdir()
    for tar in range(3):
        members = [
            member
            for number in range(4)
            for member in (
                (f"{number:04d}.png", raw.png(4 * tar + number)),
                (f"{number:04d}.txt", b"a thing"),
            )
        ]
        (folder / f"{tar:05d}.tar").write_bytes(shards.tar_bytes(members))
    return folder


def test_tars_that_each_begin_to_count_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = restarting(tmp_path / "raw")
    config = shards.config(folder, output=tmp_path / "out", reject_budget=0.9)
    said = plan_of(config, tmp_path, capsys)
    assert "00000.tar and 00001.tar begin with the same key '0000'" in said and "key: place keeps" in said
    line = screen_of(config)
    assert "8 key.duplicate" in line and "key: place" in line and "[IMAGE, CAPTION]" not in line
    placed = shards.config(folder, output=tmp_path / "b", source={"key": "place"})
    assert "same key" not in plan_of(placed, tmp_path, capsys)
    monkeypatch.chdir(tmp_path)
    assert taken(config_of(survey("raw"), tmp_path)) == 12
    assert config_of(survey("raw"), tmp_path).dataset.source.key == "place"  # type: ignore[union-attr]
    fixes = {one.remedy for one in verify(folder).findings if one.code == "sample.duplicate_key"}
    assert all("key: place" in fix and "fetch it again" not in fix for fix in fixes) and fixes


def test_an_empty_caption_that_is_a_part_of_the_key(tmp_path: Path) -> None:
    rows = raw.pictures(tmp_path / "raw", 20)
    raw.write_table(tmp_path / "raw", [*rows, ("0003.png", "", "x")])
    config = raw.config(tmp_path / "raw", tmp_path / "out")
    source = config.dataset.source.model_copy(update={"key": ["file", "caption"]})  # type: ignore[union-attr]
    config = config.model_copy(update={"dataset": config.dataset.model_copy(update={"source": source})})
    assert "1 caption.empty          captions.csv:22: the caption is empty" in screen_of(config)


def test_a_missing_file_is_named_as_it_was_looked_for(tmp_path: Path) -> None:
    rows = raw.pictures(tmp_path / "raw", 40)
    raw.write_table(tmp_path / "raw", [*rows[1:], ("gone.png", "a picture", "x")])
    assert "captions.csv:41: no such file: 'gone.png'" in screen_of(
        raw.config(tmp_path / "raw", tmp_path / "a")
    )
    raw.write_table(tmp_path / "raw", [*rows[1:], ("img\\gone.png", "a picture", "x")])
    assert "captions.csv:41: no such file: 'img/gone.png'" in screen_of(
        raw.config(tmp_path / "raw", tmp_path / "b")
    )
    raw.write_table(tmp_path / "raw", [*rows[1:], ("C:\\img\\gone.png", "a picture", "x")])
    said = screen_of(raw.config(tmp_path / "raw", tmp_path / "c"))
    assert (
        "no such file: 'C:/img/gone.png'; if that is another machine's path, give its source a root" in said
    )


def test_init_notices_images_that_git_lfs_has_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = raw.pictures(tmp_path / "raw", 20)
    monkeypatch.chdir(tmp_path)
    assert not survey("raw").best.warnings
    (tmp_path / "raw" / rows[0][0]).write_bytes(POINTER)
    (warning,) = survey("raw").best.warnings
    assert "such as 0000.png): run git lfs pull" in warning


def test_a_table_in_the_encoding_of_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = raw.pictures(tmp_path / "raw", 20)
    lines = ["file,caption", *(f"{name},größer als das {name[:4]}" for name, _, _ in rows)]
    (tmp_path / "raw" / "captions.csv").write_text("\n".join(lines), encoding="cp1252")
    said = plan_of(raw.config(tmp_path / "raw", tmp_path / "out"), tmp_path, capsys, code=1)
    assert "not UTF-8 at character 3; if it is Windows-1252, give its source encoding: cp1252" in said
    with pytest.raises(DataError) as caught:
        build(raw.config(tmp_path / "raw", tmp_path / "out"))
    assert " under " not in str(caught.value), "that all keys begin alike says nothing of an encoding"


def test_what_git_has_not_fetched(tmp_path: Path) -> None:
    rows = raw.pictures(tmp_path / "raw", 40)
    (tmp_path / "raw" / rows[0][0]).write_bytes(POINTER)
    assert PULL in screen_of(raw.config(tmp_path / "raw", tmp_path / "a"))
    (tmp_path / "tables").mkdir()
    for name in ("x.csv", "x.parquet", "x.jsonl", "x.csv.gz"):
        (tmp_path / "tables" / name).write_bytes(POINTER)
        with pytest.raises(TarmacError, match=PULL):
            build(table.config(tmp_path / "tables" / name, tmp_path / "b"))
    with pytest.raises(TarmacError, match=PULL):
        build(chat.config(tmp_path / "tables" / "x.parquet", tmp_path / "c"))
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "0.tar").write_bytes(POINTER)
    with pytest.raises(TarmacError, match=PULL):
        build(shards.config(tmp_path / "tars", output=tmp_path / "d"))
    assert all(PULL in f"{one.remedy} {one.evidence}" for one in verify(tmp_path / "tars").findings)


@pytest.mark.parametrize(
    ("make", "name"), [(kinds.npz, "p0_scan_0.npz"), (kinds.nifti, "train_0_a_1.nii.gz")]
)
def test_a_volume_that_git_has_not_fetched(make: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    make(tmp_path / "raw")
    config = config_of(survey(str(tmp_path / "raw")), tmp_path)
    (path,) = (tmp_path / "raw").rglob(name)
    path.write_bytes(POINTER)
    with pytest.raises(DataError, match=rf"1 volume\.undecodable +.*it is a Git LFS pointer .*{PULL}"):
        build(config.model_copy(update={"dataset": config.dataset.model_copy(update={"private": False})}))


@pytest.mark.parametrize("make", [kinds.captions_beside, kinds.json_beside])
def test_a_caption_that_git_has_not_fetched(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "raw")
    config = config_of(survey(str(tmp_path / "raw")), tmp_path)
    next(path for path in (tmp_path / "raw").iterdir() if path.suffix != ".png").write_bytes(POINTER)
    with pytest.raises(DataError, match=rf"1 caption\.missing +.*it is a Git LFS pointer .*{PULL}"):
        build(config)


@pytest.mark.parametrize("name", ["table", "parquet", "nifti", "npz", "webdataset", "captions beside"])
def test_init_says_at_once_what_git_has_not_fetched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kinds.KINDS[name][0](tmp_path / "raw")
    files = [path for path in (tmp_path / "raw").rglob("*") if path.suffix not in ("", ".csv", ".txt")]
    fetched = files[0].read_bytes()
    for path in files:
        path.write_bytes(POINTER)
    message = (
        r"^PATH: raw holds Git LFS pointers and not the files themselves \(\d of \d looked at, such as .*\): "
    )
    with pytest.raises(UsageError, match=message + "run git lfs pull there$"):
        survey("raw")
    assert not Path("configs").exists() and main(["init", "raw"]) == 2
    if name == "captions beside":
        for path in files[1:]:
            path.write_bytes(fetched)
        assert "(1 of 6 looked at, such as" in "\n".join(survey("raw").best.warnings)


def test_a_plan_of_which_nothing_can_be_taken_states_no_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = raw.pictures(tmp_path / "raw", 40)
    for name, _, _ in rows:
        (tmp_path / "raw" / name).write_text("<html>")
    raw.write_table(tmp_path / "raw", [*rows, ("", "no image is named", "x")])
    said = plan_of(raw.config(tmp_path / "raw", tmp_path / "out"), tmp_path, capsys, code=1)
    assert (
        "none of 20 samples tried is accepted, so size and time are unknown" in said and "free on" not in said
    )
    assert "1 member.missing   captions.csv:42: the row names no image" in said


def test_a_plan_of_private_data_names_no_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = raw.pictures(tmp_path / "raw", 20)
    raw.write_table(tmp_path / "raw", [*rows, ("", "no image is named", "x")])
    said = plan_of(raw.config(tmp_path / "raw", tmp_path / "out", private=True), tmp_path, capsys)
    assert "1 member.missing\n" in said and "captions.csv:22" not in said


def test_json_of_a_plan_holds_the_doubts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump(shards.config(restarting(tmp_path / "raw"), output=tmp_path / "out")))
    assert main(["plan", str(path), "--json"]) == 1
    printed: Any = json.loads(capsys.readouterr().out)
    assert len(printed["build"]["doubts"]) == 1
    assert printed["build"]["stops"].startswith("8 of the 12 samples tried are rejected")


def test_every_reject_can_be_listed_on_the_machine_that_holds_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = raw.pictures(tmp_path / "raw", 40)
    raw.write_table(tmp_path / "raw", [*rows, ("gone.png", "a picture", "x")])
    version = build(raw.config(tmp_path / "raw", tmp_path / "out", private=True)).version
    assert main(["rejects", str(version)]) == 0
    line = "member.missing  captions.csv:42  gone.png      no such file: 'gone.png'\n"
    assert capsys.readouterr().out.endswith(line)
    raw.write_table(tmp_path / "raw", [(f"gone{number}.png", "a picture", "x") for number in range(9)])
    with pytest.raises(DataError, match=r"tarmac rejects .* lists all") as caught:
        build(raw.config(tmp_path / "raw", tmp_path / "new", private=True))
    command = str(caught.value).partition("tarmac rejects ")[2].partition(" lists all")[0]
    assert main(["rejects", command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rejects"]) >= 8
