"""`tarmac versions`: a dataset's history, the way back, and what a prune leaves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flows.cli import main
from tasks.dataset import versions
from tests.dataset import raw
from tests.flows.birds import json_of, output_of, published
from tests.flows.test_cli import AS_ANYBODY, needs_rights, tarmac


def test_a_history(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = published("birds.yaml")
    (birds / "birds/0007.png").write_bytes(raw.png(7007))
    second = published("birds.yaml")
    (birds / "data/birds/pins").mkdir()
    (birds / "data/birds/pins/3f9a").write_text(first)
    lines = output_of(capsys, "versions", "data/birds").splitlines()
    assert [line[:14] for line in lines] == [f"→ {second}", f"  {first}"]
    assert "60 samples" in lines[0] and lines[1].endswith("pinned by 3f9a")
    assert lines[0].endswith(f"since {first}: 0 samples gained, 0 lost, 1 replaced")
    assert "since" not in lines[1], "nothing came before the first"
    shown = json_of(capsys, "versions", "data/birds")["versions"][0]["changes"]
    assert shown == {"since": first, "gained": 0, "lost": 0, "replaced": 1, "rekeyed": 0}
    assert f"current is {first}" in output_of(capsys, "versions", "data/birds", "rollback", first[:5])
    assert versions.current(birds / "data/birds").name == first
    assert json_of(capsys, "versions", "data/birds")["versions"][1]["current"] is True
    pruned = output_of(capsys, "versions", "data/birds", "prune", "--keep", "1")
    assert pruned == f"✓ removed nothing\n  {second} stays: built after the current version\n"
    output_of(capsys, "versions", "data/birds", "rollback", second)
    pruned = output_of(capsys, "versions", "data/birds", "prune", "--keep", "1")
    assert pruned == f"✓ removed nothing\n  {first} stays: pinned by 3f9a\n"
    (birds / "data/birds/pins/3f9a").unlink()
    assert output_of(capsys, "versions", "data/birds", "prune", "--keep", "1") == f"✓ removed {first}\n"
    assert [row["version"] for row in json_of(capsys, "versions", "data/birds")["versions"]] == [second]


@pytest.fixture
def dataset(digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy in `d`, the working directory being its parent."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(digits_dataset, "d", symlinks=True)
    return Path("d")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("manifest.json", "{", "manifest.json"),
        ("build.json", "{", "build.json is damaged: tarmac repair d/versions/"),
        ("build.json", '{"built": "yesterday"}', "build.json is damaged: tarmac repair d/versions/"),
    ],
)
def test_a_damaged_version_is_listed_as_such(
    dataset: Path, file: str, content: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset / "current" / file).write_text(content)
    (line,) = output_of(capsys, "versions", "d").splitlines()
    assert line.startswith(f"✗ {versions.current(dataset).name}  ") and says in line


@needs_rights
def test_a_version_whose_times_may_not_be_read_is_listed_with_the_reason(dataset: Path) -> None:
    (dataset / "current/build.json").chmod(0)
    shown = tarmac("versions", "d", cwd=Path(), before=AS_ANYBODY).stdout
    assert "build.json cannot be read: Permission denied" in shown


@needs_rights
@pytest.mark.parametrize(
    ("command", "closed"), [("repair", "versions"), ("look", "versions/VERSION"), ("versions", "")]
)
def test_a_folder_that_may_not_be_read_is_one_line(dataset: Path, command: str, closed: str) -> None:
    folder = dataset / closed.replace("VERSION", Path(os.readlink(dataset / "current")).name)
    folder.chmod(0)
    done = tarmac(command, "d", cwd=Path(), before=AS_ANYBODY)
    folder.chmod(0o755)
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1, done
    assert str(folder) in done.stderr and "Permission denied" in done.stderr
    assert "holds no version" not in done.stderr


@needs_rights
@pytest.mark.parametrize("action", [["rollback", "VERSION"], ["prune"]])
def test_a_dataset_that_may_not_be_written_is_one_line(dataset: Path, action: list[str]) -> None:
    name = Path(os.readlink(dataset / "current")).name
    dataset.chmod(0o555)
    action = [part.replace("VERSION", name) for part in action]
    done = tarmac("versions", "d", *action, cwd=Path(), before=AS_ANYBODY)
    dataset.chmod(0o755)
    assert done.returncode == 2
    assert done.stderr.startswith("✗ DATASET: d cannot be written (Permission denied); ")
    assert done.stderr.count("\n") == 1


def test_tars_of_others_become_a_dataset_where_they_lie(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built, data = versions.current(digits_dataset), tmp_path / "data"
    found = json_of(capsys, "index", f"{built}/train", str(data), "--val", f"{built}/val/*.tar")
    manifest = versions.read_manifest(built)
    assert found["modality"] == "image_text"
    assert found["splits"] == {name: one.model_dump() for name, one in manifest.splits.items()}
    assert (data / "current/index/train.npy").read_bytes() == (built / "index/train.npy").read_bytes()
    assert versions.read_manifest(data / "current").digest == manifest.digest
    assert main(["index", str(tmp_path / "nothing"), str(data)]) == 2
    assert "SHARDS: there is no" in capsys.readouterr().err
