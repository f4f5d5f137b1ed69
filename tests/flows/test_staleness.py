"""A dataset that has grown old is reported, by what lies on disk."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from flows import cli
from flows.staleness import stale_datasets
from tasks.core.files import read_json, write_json
from tasks.dataset.version import versions
from tasks.dataset.version.layout import FRESH
from tests.flows.birds import published


@pytest.fixture
def project(birds: Path) -> Path:
    """The folder of a project whose config wants a dataset of at most 36 hours; it was built just now."""
    (birds / "configs").mkdir()
    config = birds / "configs/birds.yaml"
    schedule = 'schedule: {cron: "0 2 * * *", fresh_within: 36h}\n'
    config.write_text((birds / "birds.yaml").read_text() + schedule)
    assert stale_datasets() == [], "it was never built"
    published("configs/birds.yaml")
    return birds


def dataset_of(project: Path) -> Path:
    return project / "data/birds"


def make_old(project: Path, hours: float) -> None:
    noted = dataset_of(project) / FRESH
    write_json(noted, {**read_json(noted), "at": time.time() - 3600 * hours})


def test_an_old_dataset_needs_you_until_it_was_found_up_to_date(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_old(project, 35)
    assert stale_datasets() == []
    make_old(project, 40)
    assert cli.main(["status"]) == 0
    shown = capsys.readouterr().out
    assert (
        "NEEDS YOU\n! dataset.stale" in shown and "40.0 h ago" in shown and "fresh_within is 36.0 h" in shown
    )
    assert "tarmac build configs/birds.yaml" in shown
    assert cli.main(["status", "--json"]) == 0
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["code"], finding["severity"]) == ("dataset.stale", "warning")
    assert cli.main(["build", "configs/birds.yaml"]) == 0, "nothing has changed"
    assert stale_datasets() == []


def test_a_dataset_of_an_earlier_tarmac_is_as_old_as_its_version(project: Path) -> None:
    dataset = dataset_of(project)
    (dataset / FRESH).unlink()
    built = read_json(versions.resolve(dataset) / "build.json")["built"]
    assert versions.fresh_at(dataset) == built
    assert stale_datasets(built + 37 * 3600) != [] == stale_datasets(built + 35 * 3600)


def test_a_broken_config_hides_no_other(project: Path) -> None:
    make_old(project, 40)
    (project / "configs/a.yaml").write_text("fresh_within: [")
    assert [one.where["config"] for one in stale_datasets()] == ["birds"]
