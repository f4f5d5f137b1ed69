"""`tarmac bench` on the digits: where the time goes, what limits, and that a test that hangs is an answer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from flows import cli
from flows.commands.training import _bench_lines
from tasks.core import config as configs
from tasks.core.errors import DataError
from tasks.dataset.version import versions
from tasks.diagnosis import staged
from tasks.diagnosis.mixing import ShuffleQuality
from tasks.diagnosis.staged import StagedFindings, limit_of, one_sample
from tasks.loader.settings import LoaderSettings, Measurement
from tests.training.helpers import make_run

STEADY = {"open": 0.1, "read": 1.0, "decode": 6.0, "transform": 2.0, "collate": 0.1}

MIXED = ShuffleQuality(
    samples=1000,
    shards=100,
    batch=64,
    shards_per_batch=12.5,
    perfect_shards_per_batch=50.0,
    neighbour_distance=0.1,
    storage_correlation=0.0,
    met_again=0.011,
    perfect_met_again=0.063,
)


def settings(taken: float | None, reached: float = 1900.0) -> LoaderSettings:
    found = None if taken is None else min(reached, taken)
    return LoaderSettings(workers=2, prefetch=2, reason="a test", taken_per_s=taken, reached_per_s=found)


@pytest.mark.parametrize(
    ("taken", "steady", "code", "stage"),
    [
        (1000.0, STEADY, "compute.bound", None),
        (2000.0, STEADY, "compute.bound", None),
        (9000.0, STEADY, "decode.slow", "decode"),
        (9000.0, {**STEADY, "read": 60.0}, "disk.slow", "read"),
        (9000.0, {**STEADY, "transform": 60.0}, "loader.bound", "transform"),
        (9000.0, {**STEADY, "hand-over": 60.0}, "loader.bound", "hand-over"),
    ],
)
def test_what_limits_is_told_from_the_figures(
    taken: float, steady: dict[str, float], code: str, stage: str | None
) -> None:
    found = limit_of(settings(taken), steady, sustained=2000.0)
    assert (found.code, found.evidence.get("stage")) == (code, stage)
    assert found.evidence["loader_per_s"] == 2000.0 and found.remedy
    assert found.evidence["headspace"] == round(min(1900.0, taken) / taken, 3)


def test_a_loader_that_takes_the_trainings_cores_limits_it_although_it_gives_enough_alone() -> None:
    found = limit_of(settings(1000.0, reached=600.0), STEADY, sustained=2000.0)
    assert (found.code, found.evidence["headspace"]) == ("decode.slow", 0.6)


@pytest.mark.parametrize("taken", [None, 1000.0, 9000.0])
def test_the_page_plots_what_was_measured(tmp_path: Path, taken: float | None) -> None:
    measured = [
        Measurement(workers=n, samples_per_s=1000.0 * n + 500, first_batch_s=0.1, memory_bytes=n * 10**9)
        for n in range(3)
    ]
    chosen = settings(taken).model_copy(update={"measurements": tuple(measured)})
    limit = limit_of(chosen, STEADY, sustained=2000.0)
    staged.save_bench_page(
        StagedFindings(STEADY, STEADY, chosen, 2000.0, 1900.0, limit, "windows", {"data": MIXED}),
        "digits",
        tmp_path / "runs/page.html",
    )
    page = (tmp_path / "runs/page.html").read_text(encoding="utf-8")
    assert page.count("<figure") == 3 and limit.remedy in page
    assert ("goes into decode" in page) == (taken == 9000.0)
    assert ("the training takes 9,000 samples/s</text>" in page) == (taken == 9000.0), (
        "the line has its figure"
    )
    reaches = f"the training reaches {1000 if taken == 1000 else 1900:,} of"
    assert (reaches in page) == (taken is not None)
    assert (
        "Shuffle: windows, 0.25 of a perfect shuffle" in page and "(12.5 in a batch of 64, of 50.0)" in page
    )
    assert "✓" not in page and " UTC. This file" in page


def test_the_screen_shows_the_headspace_and_the_shuffle() -> None:
    chosen = settings(2000.0)
    limit = limit_of(chosen, STEADY, 1500.0)
    both = {"data/a": MIXED, "data/b": MIXED}
    found = StagedFindings(STEADY, STEADY, chosen, 1500.0, 1400.0, limit, "windows", both)
    shown = "\n".join(_bench_lines(found))
    reaches = "the training reaches 1,900 of 2,000 samples/s that it would with batches that cost nothing (95"
    assert f"  headspace    {reaches}" in shown
    assert (
        "  shuffle      windows of data/a, 0.25 of a perfect shuffle's mixing of shards (12.5 in a batch"
        in shown
    )
    assert "windows of data/b" in shown and "· compute.bound" in shown


def test_the_time_to_the_first_sample_is_split(digits_dataset: Path, tmp_path: Path) -> None:
    run = make_run(digits_dataset, tmp_path)
    found = one_sample(configs.reload(run.config), versions.resolve(digits_dataset), tmp_path / "states")
    parts = ["open", "read", "decode", "transform", "collate"]
    [shuffle] = found["shuffle"].values()
    assert shuffle["batch"] == 32 and 0 < shuffle["shards_per_batch"] <= shuffle["shards"]
    assert list(found["first"]) == ["import", "index", *parts] and list(found["steady"]) == parts
    assert all(seconds > 0 for seconds in found["first"].values())


@pytest.mark.system
@pytest.mark.proof
def test_a_test_that_hangs_is_ended_and_says_where_it_stood(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader's own file of a shard is a pipe that nobody writes to."""
    run = make_run(digits_dataset, tmp_path)
    hanging = tmp_path / "version"
    _copy_with_a_pipe(versions.resolve(digits_dataset), hanging)
    monkeypatch.setattr(staged, "ONE_SAMPLE_S", 45.0)
    with pytest.raises(
        DataError, match=r"one_sample: not done within 45 s; it stood \d+ s in open of train/"
    ):
        staged.bench(configs.reload(run.config), hanging)


def _copy_with_a_pipe(version: Path, copy: Path) -> None:
    shutil.copytree(version, copy)
    for shard in (copy / "train").glob("*.tar"):
        shard.unlink()
        os.mkfifo(shard)


@pytest.mark.system
@pytest.mark.proof
def test_the_command_says_what_limits_and_what_to_copy(
    digits_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(digits_dataset, tmp_path)
    output = ["--set", f"dataset.output={digits_dataset}"]
    assert cli.main(["bench", str(run.config), *output, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] and printed["findings"][0]["code"] in (
        "compute.bound",
        "decode.slow",
        "loader.bound",
        "disk.slow",
    )
    assert printed["workers"] >= 1 and printed["taken_per_s"] > 0 and printed["sustained_per_s"] > 0
    assert 0 < printed["reached_per_s"] <= printed["taken_per_s"]
    assert printed["findings"][0]["evidence"]["headspace"] > 0
    assert 0.8 < printed["shuffle"][0]["shard_mixing"] < 1.2, "all digits fit into one window"
    assert printed["sample_s"]["hand-over"] > 0
    assert all(one["memory_bytes"] > 100e6 for one in printed["measurements"])
    page = Path(printed["page"]).read_text(encoding="utf-8")
    assert "samples/s by workers" in page and "hand-over" in page
