"""The page that a flow run leaves in Prefect's UI, of a finished run, a failed one and a private one."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tasks.core import config as configs
from tasks.dataset.building.conversion.result import BuildResult
from tasks.reporting import summary
from tasks.runs import record
from tests.reporting.finished_run import finished_run, make_config

WANDB = "https://wandb.example/run"


def _built(version: Path) -> BuildResult:
    return BuildResult(
        version, "d", 61, 60, 0, 1, {"image.undecodable": 1}, 2, 1, "77aa", 12, 3, 800, 0, 0, False, 1.0
    )


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TARMAC_PAGES_URL", raising=False)


def test_a_finished_run_shows_change_figures_picture_and_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run(tmp_path)
    run.report.write_text("page")
    monkeypatch.setenv("TARMAC_PAGES_URL", "http://pages:4201/")
    page = summary.of_run(run, _built(tmp_path / "data/current"), None, WANDB)
    assert page.startswith(f"# ✓ {run.name}\n\n**Zero-shot accuracy 0.957 (0.927 to 0.977 at 95 %; ")
    assert (
        "**12 samples gained, 3 lost, 800 replaced**; version `current`, was `77aa`; 1 of 2 shards written."
        in page
    )
    assert "| 61 | 60 | 0 | 1 |" in page
    assert "image.not_an_image" in page
    assert "| 2 | 3,410 | 3.1 s |" in page
    assert "| 600 | 0.957 | 0.947 |" in page
    assert f"](http://pages:4201/runs/{run.name}/report.html)" in page
    assert f"[{WANDB}]({WANDB})" in page


def test_the_loss_is_a_picture_without_anything_from_elsewhere(tmp_path: Path) -> None:
    page = summary.of_run(finished_run(tmp_path), None, None, None)
    found = re.search(r"!\[loss[^]]*\]\(data:image/svg\+xml;base64,([^)]+)\)", page, re.IGNORECASE)
    assert found is not None
    drawing = base64.b64decode(found[1]).decode()
    ElementTree.fromstring(drawing)
    assert "http" not in drawing.replace("http://www.w3.org/2000/svg", "")
    assert "training" in drawing and "validation" in drawing


def test_a_failed_run_says_why_and_quotes_no_markdown(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    record.save_record(run, record.load_record(run).having(state="failed", reason="the loss is not finite"))
    failure = "train failed: the loss is not finite\n# not a title\n```"
    page = summary.of_run(run, None, failure, None)
    assert page.startswith(f"# ✗ {run.name}")
    assert f"```\n{failure[:-3]}'''\n```" in page
    assert "offline; `tarmac gather" in page
    assert "`runs/" in page, "a path without pages to serve it"


def test_of_a_private_dataset_there_are_counts_only(tmp_path: Path) -> None:
    run = finished_run(tmp_path, captions=[f"secret {number}" for number in range(60)], private=True)
    page = summary.of_run(run, _built(tmp_path / "data/current"), None, None)
    assert "secret" not in page and "broken" not in page
    assert "| 61 | 60 | 0 | 1 |" in page
    assert "1 image.not_an_image" in page


def test_a_build_has_a_page_of_its_own(tmp_path: Path) -> None:
    config = make_config(tmp_path, ["a digit"] * 3)
    assert configs.dump(config)
    page = summary.of_dataset(config, None, "build failed: 3 of 3 samples are gone")
    assert page.startswith("# digits-clip\n")
    assert "3 of 3 samples are gone" in page
