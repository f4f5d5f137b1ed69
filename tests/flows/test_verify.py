"""What `tarmac verify` prints, and its exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flows.cli import main
from tasks.dataset.version import versions
from tests.dataset.building.prepared import pictures, published
from tests.flows.birds import output_of


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 25 shards or more, which no test may change."""
    config = pictures(tmp_path_factory.mktemp("verify"), 100, shard={"samples": 4}, splits={})
    published(config)
    return config.dataset.output


@pytest.fixture
def dataset(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the dataset in `data`, the working directory being its parent."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    return shutil.copytree(built, Path("data"), symlinks=True)


def test_a_sound_dataset_is_reported_with_what_was_not_looked_at(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = versions.resolve(dataset)
    first, second = output_of(capsys, "verify", "data", "--quick").splitlines()
    assert first.startswith(f"✓ {version} is sound at level quick, ")
    assert second == "  not looked at: the bytes within the shards; whether members decode"
    assert len(output_of(capsys, "verify", "data", "--full").splitlines()) == 1
    printed = json.loads(output_of(capsys, "verify", "data", "--json"))
    assert printed["ok"] and printed["not_seen"] == ["whether members decode"]
    assert {entry["code"] for entry in printed["ruled_out"]} >= {"shard.checksum", "sample.duplicate_key"}


def test_many_findings_of_a_code_are_counted_and_the_way_out_stands_last(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tars = sorted((versions.resolve(dataset) / "train").glob("*.tar"))
    for path in tars:
        path.unlink()
    lines = output_of(capsys, "verify", "data", code=1).splitlines()
    assert sum(line.startswith("✗ shard.missing") for line in lines) == 20
    assert f"… shard.missing: {len(tars) - 20} more; --json lists all" in lines
    assert lines[-2].startswith(f"✗ {len(tars)} findings in {len(tars)} shards, ")
    assert lines[-1].strip() == "next: tarmac repair data"
    assert len(json.loads(output_of(capsys, "verify", "data", "--json", code=1))["findings"]) == len(tars)


def test_tars_of_others_are_not_repaired(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = str(versions.resolve(dataset) / "train" / "{000000..000099}.tar")
    text = output_of(capsys, "verify", pattern, code=1)
    assert "tarmac repair" not in text and "name the tars without it" in text


def test_parts_of_a_version_are_not_reported_as_unchanged(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = output_of(capsys, "verify", "data/current/train/000000.tar").splitlines()[-1]
    assert last.startswith("  not looked at: ") and "changed bytes: no manifest" in last
    assert f"tarmac verify {dataset.resolve()} compares them" in last


def test_a_pattern_that_the_shell_took_apart_is_to_be_quoted(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tars = [str(path) for path in sorted((versions.resolve(dataset) / "train").glob("*.tar"))]
    for arguments, message in (
        (tars, f"got {len(tars) - 1} more, from {tars[1]} on; quote the pattern"),
        ([tars[0], "nowhere.tar"], "'nowhere.tar' is one argument too many"),
        ([tars[0], "--quik"], "unknown option --quik; did you mean --quick?"),
    ):
        assert main(["verify", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_what_cannot_be_judged_is_a_usage_error(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["pipe:cat x.tar"], ["nowhere"], ["raw"], ["."], ["data", "--quick", "--full"]):
        assert main(["verify", *arguments]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
