"""`tarmac versions`: a dataset's history, the way back, and what a prune leaves."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from flows.cli import main
from tasks.dataset.version import versions
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


def test_what_differs_between_two_versions_is_listed(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = published("birds.yaml")
    (birds / "birds/0007.png").write_bytes(raw.png(7007))
    rows = [(f"{number:04d}.png", f"picture {number}", "x") for number in range(72) if number != 3]
    raw.write_table(birds / "birds", rows, ("file", "caption", "label"))
    for number in range(60, 72):
        (birds / f"birds/{number:04d}.png").write_bytes(raw.png(number))
    raw_labels_kept(birds)
    second = published("birds.yaml")
    lines = output_of(capsys, "versions", "data/birds", "diff", first[:6]).splitlines()
    assert lines[0] == f"{first} → {second}: 12 samples gained, 1 lost, 1 replaced"
    assert lines[1] == "  gained    0060.png" and lines[11] == "  gained    … and 2 more; --json lists all"
    assert lines[12:] == ["  lost      0003.png", "  replaced  0007.png"]
    found = json_of(capsys, "versions", "data/birds", "diff", first, second)
    assert (found["gained"], found["lost"], found["replaced"], found["moved"]) == (12, 1, 1, 0)
    assert len(found["samples"]["gained"]) == 12 and found["samples"]["lost"] == ["0003.png"]
    back = output_of(capsys, "versions", "data/birds", "diff", second, first)
    assert f"{second} → {first}: 1 sample gained, 12 lost, 1 replaced" in back
    text = Path("birds.yaml").read_text()
    Path("birds.yaml").write_text(f"{text}  splits: {{val: 0.5}}\n  private: true\n")
    third = published("birds.yaml")
    (line,) = output_of(capsys, "versions", "data/birds", "diff", second).splitlines()
    assert line.startswith(f"{second} → {third}: 0 samples gained, 0 lost, 0 replaced, ")
    assert line.endswith(" moved to another split"), "no key of private data is shown"
    assert json_of(capsys, "versions", "data/birds", "diff", second)["samples"] is None


def raw_labels_kept(folder: Path) -> None:
    """Give the rows of the table the labels that they had, so that only what a test changes is changed."""
    path = folder / "birds/captions.csv"
    lines = path.read_text().splitlines()
    rows = [f"{line[:-1]}label {int(line[:4]) % 3}" for line in lines[1:]]
    path.write_text("\n".join([lines[0], *rows]) + "\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["diff"], "VERSION: diff needs the version to compare with; see tarmac versions DATASET"),
        (["diff", "zz"], "VERSION: no version of data/birds starts with 'zz' (it has: "),
        (["list", "1", "2"], "VERSION: list takes none, and '1' is given"),
        (["rollback", "1", "2"], "OTHER: rollback takes none, and '2' is given; it is for diff"),
        (["diff", "1", "--keep", "2"], "--keep: diff removes no version; it is for prune"),
    ],
)
def test_arguments_that_an_action_does_not_take(
    birds: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    published("birds.yaml")
    assert main(["versions", "data/birds", *words]) == 2
    assert f"✗ {says}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    ["touch", "reject_budget: 0.2", "keep: 1", "private: true", "license: cc-by-4.0", "mirror: null"],
)
def test_a_change_that_leaves_every_sample_alike_makes_no_new_version(birds: Path, change: str) -> None:
    version = published("birds.yaml")
    if change == "touch":
        for path in (birds / "birds").iterdir():
            os.utime(path)
    else:
        text = Path("birds.yaml").read_text()
        Path("birds.yaml").write_text(f"{text}  {change}\n")
    assert published("birds.yaml") == version
    assert len(list((birds / "data/birds/versions").iterdir())) == 1


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
        ("build.json", "{", "build.json is torn or newer"),
        ("build.json", '{"built": NaN}', "build.json is torn or newer"),
    ],
)
def test_a_damaged_version_is_listed_as_such(
    dataset: Path, file: str, content: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset / "current" / file).write_text(content)
    (line,) = output_of(capsys, "versions", "d").splitlines()
    assert line.startswith(f"✗ {versions.current(dataset).name}  ") and says in line
    assert line.endswith(f"; tarmac verify {versions.current(dataset)} says what to do")


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
    assert found["splits"] == {name: asdict(one) for name, one in manifest.splits.items()}
    assert (data / "current/index/train.npy").read_bytes() == (built / "index/train.npy").read_bytes()
    assert versions.read_manifest(data / "current").digest == manifest.digest
    assert main(["index", str(tmp_path / "nothing"), str(data)]) == 2
    assert "SHARDS: there is no" in capsys.readouterr().err
