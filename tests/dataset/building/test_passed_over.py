"""Files that are read as nothing are counted wherever the samples are, and change nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.cli import main
from tasks.core.config import dump
from tasks.core.schema import Config
from tasks.dataset.building.builder import build, is_up_to_date
from tasks.dataset.building.forecast import forecast
from tasks.dataset.preview import write_look
from tasks.dataset.repair.run import repair
from tasks.dataset.version.manifest import read_manifest
from tests.dataset import raw
from tests.dataset.building.prepared import changed, published
from tests.dataset.raw import image_folder

LINE = "3 files passed over: 2 without suffix, 1 .pdf"
HIDDEN = (
    "4 thumbnails of a system passed over (2 @eaDir, 1 .thumbnails, 1 __MACOSX)",
    "2 hidden pictures passed over (1 #recycle, 1 lost+found)",
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    made = image_folder.make_of_classes(tmp_path / "raw")
    for name in ("dog/photo", "noext"):
        (tmp_path / "raw" / name).write_bytes(raw.png(1))
    (tmp_path / "raw" / "notes.PDF").write_bytes(b"%PDF-")
    for place in ("@eaDir", "dog/@eaDir/0.png", "#recycle/dog", "lost+found", "__MACOSX/dog", ".thumbnails"):
        (tmp_path / "raw" / place).mkdir(parents=True)
        (tmp_path / "raw" / place / "thumb.jpg").write_bytes(raw.png(9))
    for name in ("Thumbs.db", "dog/desktop.ini", ".DS_Store"):
        (tmp_path / "raw" / name).write_bytes(b"x")
    return made


def test_what_is_read_as_nothing_is_counted_everywhere(
    config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump(config))
    assert main(["plan", str(path)]) == 0
    planned = capsys.readouterr().out
    assert all(line in planned for line in (LINE, *HIDDEN))
    version = published(config).version
    assert json.loads((version / "manifest.json").read_bytes())["passed_over"] == {
        ".pdf": 1,
        "without suffix": 2,
        "thumbnails in @eaDir": 2,
        "thumbnails in .thumbnails": 1,
        "thumbnails in __MACOSX": 1,
        "hidden in #recycle": 1,
        "hidden in lost+found": 1,
    }
    assert read_manifest(version).read == 6, "a system's folders are no classes"
    page = write_look(version, tmp_path / "look.html").path.read_text()
    assert all(line in page for line in (LINE, *HIDDEN))
    assert main(["build", str(path)]) == 0
    built = capsys.readouterr().out
    assert all(f"\n  {line}\n" in built for line in (LINE, *HIDDEN))


def test_a_version_is_as_if_built_from_nothing(config: Config, tmp_path: Path) -> None:
    first = published(config)
    assert is_up_to_date(config) == first.version
    (tmp_path / "raw" / "more.pdf").write_bytes(b"%PDF-")
    second = build(config)
    assert second.shards_rewritten == 0 and read_manifest(second.version).passed_over[".pdf"] == 2
    for name in ("notes.PDF", "more.pdf", "noext", "dog/photo"):
        (tmp_path / "raw" / name).unlink()
    for thumbnail in list((tmp_path / "raw").rglob("thumb.jpg")):
        thumbnail.unlink()
    third = build(config)
    assert b"passed_over" not in (third.version / "manifest.json").read_bytes()


def test_a_repair_makes_the_same_manifest(config: Config) -> None:
    version = published(config).version
    before = (version / "manifest.json").read_bytes()
    (version / "manifest.json").unlink()
    assert repair(version).ok
    assert (version / "manifest.json").read_bytes() == before


def test_of_private_data_no_kind_is_shown(config: Config, tmp_path: Path) -> None:
    version = build(changed(config, private=True)).version
    page = write_look(version, tmp_path / "look.html").path.read_text()
    assert "3 files passed over." in page and ".pdf" not in page
    assert "4 thumbnails of a system passed over." in page and "@eaDir" not in page


def test_volumes_and_their_tables_are_no_such_files(tmp_path: Path) -> None:
    raw.volumes(tmp_path / "raw", 4)
    (tmp_path / "raw" / "p0.dcm").write_bytes(b"x")
    (tmp_path / "raw" / "p0.nii.gz").write_bytes(b"x")
    work = forecast(raw.volume_config(tmp_path / "raw", tmp_path / "out")).work
    assert work is not None and work.passed_over == {".dcm": 1, ".nii.gz": 1}
