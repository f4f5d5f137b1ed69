"""The commands on datasets, from raw data to its history, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tasks.dataset import quarantine, versions
from tasks.dataset.build.run import build
from tasks.dataset.quarantine import Entry
from tests.dataset import raw

COUNT = 60


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with raw images in `birds` and a config `birds.yaml`."""
    monkeypatch.chdir(tmp_path)
    raw.pictures(tmp_path / "birds", COUNT)
    (tmp_path / "birds.yaml").write_text(
        "name: birds\ndataset:\n  output: data/birds\n  modality: image_text\n"
        "  source: {kind: table, path: birds/captions.csv, image: file, caption: caption}\n"
        "  shard: {samples: 16}\n"
    )
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(said(capsys, *arguments, "--json"))
    assert value["ok"] is True and value["findings"] == []
    return value


def published(config: str) -> str:
    from tasks.core.config import load

    settings = load(Path(config), ())
    result = build(settings)
    versions.publish(settings.dataset.output, result.version, 3)
    return result.version.name


def test_a_plan_before_and_after(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = said(capsys, "plan", "birds.yaml")
    assert "there is no version yet" in first and "60 raw samples" in first
    assert "60 to convert into" in first and "with 2 workers" in first
    assert (
        first.endswith("nothing was written; to do it: tarmac build birds.yaml\n")
        and not (project / "data").exists()
    )
    version = published("birds.yaml")
    assert f"up to date: version {version}" in said(capsys, "plan", "birds.yaml")
    (project / "birds/0007.png").write_bytes(raw.png(7007))
    assert told(capsys, "plan", "birds.yaml")["build"]["work"]["to_convert_shards"] == 1


def test_what_is_left_out_of_the_version_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = published("birds.yaml")
    assert "left out" not in said(capsys, "plan", "birds.yaml") + said(capsys, "build", "birds.yaml")
    lost = [Entry(version, "train", "train/000000.tar", f"birds_{n}", "member.checksum") for n in range(3)]
    quarantine.add(project / "data/birds", lost)
    line = "3 of 51 train samples are left out: quarantine.jsonl; tarmac repair data/birds takes back what is"
    assert f"\n!         {line}" in said(capsys, "plan", "birds.yaml")
    assert f"\n! {line}" in said(capsys, "build", "birds.yaml")
    for command in ("plan", "build"):
        assert told(capsys, command, "birds.yaml")["left_out"] == {"train": 3}


def test_a_plan_of_what_is_mostly_broken_says_so(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(COUNT):
        (project / f"birds/{number:04d}.png").write_text("<html>")
    assert "!         of 20 samples tried: image.not_an_image   captions.csv:" in said(
        capsys, "plan", "birds.yaml"
    )


def test_a_plan_tells_a_schedule_that_is_none_and_what_is_doubtful(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {"recipe": "clip", "model": {"name": "tarmac/digits"}, "batch_size": 60, "steps": 5, "lr": 0.1}
    text = Path("birds.yaml").read_text()
    text += f"\ntrain: {json.dumps({**train, 'checkpoint_every': 5})}\n"
    Path("trained.yaml").write_text(text)
    early = said(capsys, "plan", "trained.yaml", "--set", "train.warmup=9")
    assert "there is no version yet" in early and "!         train.warmup: all 5 steps" in early
    published("birds.yaml")
    changed = said(capsys, "plan", "trained.yaml", "--set", "train.warmup=9", "--set", "name=other")
    assert "to do it: tarmac run trained.yaml --set train.warmup=9 --set name=other\n" in changed
    assert "!         train.warmup: all 5 steps are among the 9 of the warm-up" in changed
    doubt = "train.batch_size: a batch of 60 holds samples twice, as there are 51 to train on"
    assert f"\n!         {doubt}" in said(capsys, "plan", "trained.yaml")
    assert told(capsys, "plan", "trained.yaml")["doubts"][0].startswith(doubt)
    Path("nightly.yaml").write_text(text + 'schedule: {cron: "99 2 * * *"}\n')
    assert main(["plan", "nightly.yaml"]) == 2
    assert "nightly.yaml: schedule.cron: '99 2 * * *' (UTC) is no schedule" in capsys.readouterr().err


def test_a_history(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = published("birds.yaml")
    (project / "birds/0007.png").write_bytes(raw.png(7007))
    second = published("birds.yaml")
    (project / "data/birds/pins").mkdir()
    (project / "data/birds/pins/3f9a").write_text(first)
    lines = said(capsys, "versions", "data/birds").splitlines()
    assert [line[:14] for line in lines] == [f"→ {second}", f"  {first}"]
    assert "60 samples" in lines[0] and lines[1].endswith("pinned by 3f9a")
    assert f"current is {first}" in said(capsys, "versions", "data/birds", "rollback", first[:5])
    assert versions.current(project / "data/birds").name == first
    assert told(capsys, "versions", "data/birds")["versions"][1]["current"] is True
    said(capsys, "versions", "data/birds", "rollback", second)
    pruned = said(capsys, "versions", "data/birds", "prune", "--keep", "1")
    assert pruned == f"✓ removed nothing\n  {first} stays: pinned by 3f9a\n"
    (project / "data/birds/pins/3f9a").unlink()
    assert said(capsys, "versions", "data/birds", "prune", "--keep", "1") == f"✓ removed {first}\n"
    assert [row["version"] for row in told(capsys, "versions", "data/birds")["versions"]] == [second]


def test_a_damaged_version_is_listed_as_such(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = published("birds.yaml")
    (project / "data/birds/versions" / version / "manifest.json").write_text("{")
    assert said(capsys, "versions", "data/birds").startswith(f"✗ {version}  ")


def test_from_raw_files_to_a_page(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = said(capsys, "init", "birds")
    assert "configs/birds.yaml" in shown
    published("configs/birds.yaml")
    page = said(capsys, "look", "data/birds").strip()
    assert "picture 7" in Path(page).read_text()
