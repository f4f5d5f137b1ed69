"""Training on packs of conversations, from raw files on: what a resume reads, and what is left out."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.core import config as configs
from tasks.core.config import load_config
from tasks.core.errors import DataError, UsageError
from tasks.core.files import link_atomic
from tasks.core.schema import Config
from tasks.dataset.building.builder import build
from tasks.dataset.version.layout import LENGTHS
from tasks.dataset.version.manifest import read_manifest
from tasks.diagnosis import bench, measure, memory, own_run, step_rate
from tasks.diagnosis.own_run import OwnCase
from tasks.loader.bad import BadSampleError
from tasks.loader.batches import open_split
from tasks.loader.feed import Data, Feed
from tasks.loader.packing import lengths
from tasks.loader.packing.packs import UNMEASURED
from tasks.models import recipes
from tasks.runs.folder import RunFolder
from tasks.runs.plan import plan
from tasks.supervision.attempt import tuning
from tasks.training.loop import _packing, measure_lengths
from tasks.training.ranks import Ranks
from tests.conftest import ROOT
from tests.diagnosis.test_bench import Stand
from tests.models.examples import picture
from tests.training.helpers import model_bytes, rows, set_workers, train_here

LONG = 7
"""The row whose answer is longer than a pack."""


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    """Two dozen conversations of a picture each, and the config with a training of 6 steps of 4 packs."""
    folder = tmp_path_factory.mktemp("chats")
    raw = folder / "data/raw/digits-chat"
    raw.mkdir(parents=True)
    for number in range(24):
        (raw / f"{number}.png").write_bytes(picture(number))
    lines = [
        {
            "images": [f"{number}.png"],
            "texts": [
                {"user": "Which?", "assistant": "It is " + str(number) * (500 if number == LONG else 5)}
            ],
        }
        for number in range(24)
    ]
    (raw / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    short = (
        *(
            "train.steps=6",
            "train.checkpoint_every=3",
            "train.log_every=1",
            "evaluate=null",
            "train.threads=1",
        ),
        *("train.pack={tokens: 160, images: 3}", f"dataset.output={folder}/data", f"runs={folder}/runs"),
        f"dataset.source.path={raw}",
        "dataset.filter={}",
    )
    config = load_config(ROOT / "configs/digits-chat.yaml", short)
    return config, build(config).version


def test_it_goes_on_with_the_next_pack_and_says_what_is_left_out(
    chats: tuple[Config, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config, version = chats
    run = plan(config.model_copy(update={"runs": tmp_path / "whole"}), version)
    set_workers(run, 0)
    with caplog.at_level(logging.WARNING, logger="tasks"):
        assert train_here(run) == 6
    assert "1 sample with more than 160 tokens or 3 images left out of" in caplog.text
    losses = [row["train/loss"] for row in rows(run, "train").values()]
    assert losses[-1] < losses[0] and min(row["train/fill"] for row in rows(run, "train").values()) > 0.5
    whole = model_bytes(run, 6)
    broken_off = RunFolder(shutil.copytree(run.path, tmp_path / "other" / run.path.name, symlinks=True))
    shutil.rmtree(broken_off.checkpoint(6))
    link_atomic(broken_off.latest, broken_off.checkpoint(3).name)
    assert train_here(broken_off) == 6 and model_bytes(broken_off, 6) == whole


def a_run(chats: tuple[Config, Path], folder: Path) -> RunFolder:
    config, version = chats
    run = plan(config.model_copy(update={"runs": folder}), version)
    set_workers(run, 0)
    return run


def test_the_agent_has_all_samples_measured_before_the_ranks_start(
    chats: tuple[Config, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(chats, tmp_path)
    tuning.prepare(run, configs.reload(run.config), on_idle=lambda: None)
    assert not list(run.lengths.glob("*.part"))
    tokens, images = np.load(run.lengths / "0.npy")
    assert (tokens > 160).sum() == 1 and (images == 1).all()
    monkeypatch.setattr(tuning, "LENGTHS", "nobody:asks")
    tuning.prepare(run, configs.reload(run.config), on_idle=lambda: None)


def test_a_version_is_measured_once_for_all_that_count_its_samples_alike(
    chats: tuple[Config, Path], tmp_path: Path
) -> None:
    config, version = chats
    assert config.train is not None
    home = version.parent.parent / LENGTHS
    for path in home.glob("*"):
        path.unlink()

    def measured(name: str, **changes: Any) -> Path:
        train = config.train.model_copy(update=changes)
        run = a_run((config.model_copy(update={"train": train}), version), tmp_path / name)
        measure_lengths(run.path)
        return run.lengths / "0.npy"

    first = measured("first")
    (kept,) = home.glob("*.npy")
    assert kept.name.startswith(version.name) and kept.samefile(first)
    assert measured("other rate", lr=1e-5).samefile(first), "and nothing is measured again"
    larger = measured("larger", model={**config.train.model, "max_side": 64})
    assert not larger.samefile(first) and len(list(home.glob("*.npy"))) == 2
    assert (np.load(larger)[0] >= np.load(first)[0]).all()
    assert not list(home.glob("*.lease")) and not list(home.glob("*.part"))


def test_where_nothing_can_be_written_beside_the_version_the_run_has_the_lengths(
    chats: tuple[Config, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths.os, "access", lambda path, mode: False)
    run = a_run(chats, tmp_path)
    before = set((chats[1].parent.parent / LENGTHS).glob("*"))
    measure_lengths(run.path)
    assert (run.lengths / "0.npy").stat().st_nlink == 1
    assert set((chats[1].parent.parent / LENGTHS).glob("*")) == before


class Numbering:
    """Counts a sample's tokens by its key; a copy in another process tells that it was there."""

    shaped_by = "numbers"

    def __init__(self, folder: Path, bad: int | None = None) -> None:
        self.folder, self.bad = folder, bad

    def measure(self, sample: Mapping[str, bytes]) -> tuple[int, int]:
        (self.folder / str(os.getpid())).touch()
        number = len(json.loads(sample["json"])["messages"][0]["assistant"])
        if number == self.bad:
            raise DataError("is too bad to be measured")
        return number, 1


def test_several_processes_measure_what_one_does_and_name_a_sample_that_cannot_be_read(
    chats: tuple[Config, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "CHUNK", 2)
    reader = open_split(chats[1], "train", ())
    found = []
    for name, processes in (("one", 1), ("three", 3)):
        seen = tmp_path / f"seen by {name}"
        seen.mkdir()
        lengths.measure([reader], Numbering(seen), tmp_path / name, most=1000, processes=processes)
        found.append(lengths.read_lengths([reader], tmp_path / name)[0].tokens.tolist())
        assert len(list(seen.iterdir())) <= processes and (str(os.getpid()) in os.listdir(seen)) == (
            name == "one"
        )
    assert found[0] == found[1] and len(set(found[0])) > 1
    bad = max(found[0])
    with pytest.raises(BadSampleError, match=r"train/000000.tar row \d+, key .*is too bad to be measured"):
        lengths.measure([reader], Numbering(tmp_path, bad), tmp_path / "bad", most=1000, processes=2)


def test_no_rank_waits_for_another_that_measures(chats: tuple[Config, Path], tmp_path: Path) -> None:
    """Two ranks without a group: an exchange would fail."""
    run, options = a_run(chats, tmp_path), chats[0].train
    assert options is not None
    feed = Feed.of(chats[0], [Data(chats[1])], recipes.load_recipe(options))
    with pytest.raises(DataError, match=r"lengths/0\.npy: is missing; the run's agent makes it"):
        _packing(run, options, feed, Ranks(0, 2))
    measure_lengths(run.path)
    assert _packing(run, options, feed, Ranks(1, 2)).packed is not None


def test_measuring_that_was_killed_goes_on_from_where_it_was(
    chats: tuple[Config, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lengths, "CHUNK", 5)
    monkeypatch.setattr(lengths, "LEAST_CHUNKS", 100)
    reader = open_split(chats[1], "train", ())
    asked: list[int] = []

    class Counting:
        shaped_by = str(tmp_path)

        def measure(self, sample: Mapping[str, bytes]) -> tuple[int, int]:
            asked.append(len(asked))
            return len(asked), 1

    def killed(done: int, total: int, note: str) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lengths.measure([reader], Counting(), tmp_path, most=1000, progress=killed)
    with (tmp_path / "0.part").open("ab") as draft:
        draft.write(b"torn")
    before = len(asked)
    lengths.measure([reader], Counting(), tmp_path, most=1000)
    [found] = lengths.read_lengths([reader], tmp_path)
    assert before == 10 and len(asked) == len(reader)
    assert found.tokens.tolist() == list(range(1, len(reader) + 1))


def test_bench_and_preflight_take_rows_as_the_training_packs_them(
    chats: tuple[Config, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, version = chats
    monkeypatch.setattr(measure, "MEASURED_S", 0.2)
    monkeypatch.setattr(measure, "SAMPLES_MEASURED", 15)
    monkeypatch.setattr(lengths, "RUN", 5)
    monkeypatch.setattr(bench, "available_cores", lambda: 1)
    trial = Stand(1.0)
    monkeypatch.setattr(step_rate, "Trial", lambda recipe, train: trial)
    settings = bench.tune(config, version)
    assert settings.unit == "rows" and " rows/s" in settings.reason
    for batch in (trial.steps[0][0], trial.fed_with[0]):
        assert batch["segments"].max() > 0 and len(batch["rows"]) == len(batch["tokens"]) == 4
    assert config.train is not None
    feed = measure.feed_of(config, version, recipes.load_recipe(config.train))
    packs = measure.rows_an_epoch(feed)
    [shuffle] = measure.qualities_of(feed)
    assert shuffle.batch > feed.batch_size, "a row holds several samples"
    known = feed.packed.lengths[0].tokens < UNMEASURED if feed.packed is not None else np.zeros(0)
    assert 10 <= known.sum() <= 15 and packs is not None and 3 <= packs < 24 * 0.7
    case = OwnCase(config, config.train, version, read_manifest(version), 2, memory.limits(), 1e15, rows=3)
    starved = {one.code: one for one in own_run.judge_own_run(case)}["worker.starved"]
    assert starved.severity == "warning" and "takes 4 of 3 rows that" in starved.evidence["problem"]
    assert own_run.judge_own_run(replace(case, rows=packs)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("loader.on_bad=replace", "train.pack: on_bad: replace puts samples of other lengths"),
        ("loader.reader=streaming", "train.pack: reader: streaming does not know sample lengths"),
        (
            "train={recipe: clip, model: {name: tarmac/digits}, pack: {}, batch_size: 4, steps: 1, lr: 1, checkpoint_every: 1}",
            "train.pack: has no effect with recipe clip",
        ),
    ],
)
def test_what_cannot_be_packed_is_told(change: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        config = load_config(ROOT / "configs/digits-chat.yaml", [change, "evaluate=null"])
        assert config.train is not None
        recipes.check_recipe(config.train)
