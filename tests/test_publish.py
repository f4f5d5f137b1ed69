"""The stage that makes a version current, as a person sees it: what is current now, and what has gone."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks import stage
from tasks.build import publish
from tasks.dataset.building.builder import build
from tests.dataset import raw


def test_the_versions_that_keep_removes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stage, "get_run_logger", lambda: logging.getLogger("test"))
    monkeypatch.setattr(stage, "_left_alone_until", 0.0)
    raw.pictures(tmp_path / "raw", 20)
    config = raw.config(tmp_path / "raw", tmp_path / "out", keep=2)
    names, removed = [], []
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        for seed in range(3):
            (tmp_path / "raw/0007.png").write_bytes(raw.png(seed))
            version = build(config, accept_loss=True).version
            done = publish.fn(config, version)
            names.append(version.name)
            removed.append(done.details.removed)
    assert removed == [[], [], [names[0]]]
    assert done.summary == f"version {names[2]} (was {names[1]}); removed {names[0]} (dataset.keep: 2)"
    assert f"removed {names[0]}" in capsys.readouterr().err
