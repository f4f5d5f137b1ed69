"""The samples that a run leaves out: fixed when it is planned, and part of what it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tasks.core import config as configs
from tasks.core.errors import DataError
from tasks.core.quarantine_file import NAME, Quarantined, to_text
from tasks.dataset.version import quarantine
from tasks.runs import record
from tasks.runs.data import left_out_by, train_samples
from tasks.runs.plan import locate, plan, resolve
from tests.runs.test_plan import make_version
from tests.supervision.fakes import make_config


def entry(version: Path, key: str = "a", split: str = "train") -> Quarantined:
    return Quarantined(version.name, split, f"{split}/000000.tar", key, "member.checksum")


def test_none_leaves_no_trace(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    run = locate(config, version)
    quarantine.add(version.parents[1], [Quarantined("0" * 12, "train", "train/000000.tar", "a", "x")])
    assert plan(config, version) == run, "what is about other versions does not count"
    assert not run.quarantine.exists() and "quarantine" not in record.load_record(run).identity
    assert left_out_by(run) == []


def test_a_run_keeps_a_copy_of_what_is_about_its_version(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    whole = plan(config, version)
    mine = [entry(version, "a"), entry(version, "b", "val")]
    dataset = version.parents[1]
    quarantine.add(dataset, [*mine, Quarantined("0" * 12, "train", "train/000000.tar", "a", "x")])
    run = plan(config, version)
    assert run != whole and locate(config, version) == run
    assert left_out_by(run) == mine and left_out_by(whole) == []
    quarantine.add(dataset, [entry(version, "c")])
    assert left_out_by(run) == mine, "what is found later is another run's"
    assert plan(config, version) not in (run, whole)
    quarantine.remove(dataset, [*mine, entry(version, "c")])
    assert plan(config, version) == whole


def test_epochs_count_the_samples_that_are_left(tmp_path: Path) -> None:
    version = make_version(tmp_path)  # of 80
    config = make_config(tmp_path, train={"steps": None, "epochs": 2, "batch_size": 4})
    quarantine.add(version.parents[1], [entry(version, key) for key in "abcdef"])
    quarantine.add(version.parents[1], [entry(version, "g", "val")])
    train = resolve(config, version).train
    assert train is not None and train.steps == 2 * 74 // 4
    kept = configs.reload(plan(config, version).config).train
    assert kept is not None and kept.steps == train.steps


def test_a_sample_that_is_listed_twice_counts_once(tmp_path: Path) -> None:
    version = make_version(tmp_path)  # of 80
    config = make_config(tmp_path, train={"steps": None, "epochs": 2, "batch_size": 2})
    quarantine.add(version.parents[1], [entry(version)])
    once = plan(config, version)
    with (version.parents[1] / NAME).open("a") as file:
        file.write(to_text([dataclasses.replace(entry(version), reason="member.undecodable")]))
    train = resolve(config, version).train
    assert train is not None and train.steps == 79
    assert plan(config, version) == once and left_out_by(once) == [entry(version)]


@pytest.mark.parametrize("change", ["removed", "added", "torn"])
def test_a_copy_that_was_changed_is_refused(tmp_path: Path, change: str) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    quarantine.add(version.parents[1], [entry(version)])
    run = plan(config, version)
    if change == "removed":
        run.quarantine.unlink()
    elif change == "added":
        quarantine.add(run.path, [entry(version, "z")])
    else:
        run.quarantine.write_text("{")
    with pytest.raises(DataError, match=rf"{NAME}.*(is not what the run began with|is no entry)"):
        left_out_by(run)


def test_a_torn_line_in_the_datasets_is_told_before_anything_is_planned(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    (version.parents[1] / NAME).write_text('{"version": "0')
    with pytest.raises(DataError, match=rf"{NAME}, line 1: is no entry"):
        plan(config, version)
    assert not config.runs.exists()


def test_epochs_of_nothing_name_the_quarantine(tmp_path: Path) -> None:
    version = make_version(tmp_path, samples=2)
    quarantine.add(version.parents[1], [entry(version, "a")])
    assert train_samples(version) == 1
    quarantine.add(version.parents[1], [entry(version, "b")])
    with pytest.raises(
        DataError, match=r"all 2 samples of split train are left out: quarantine\.jsonl; `tarmac"
    ):
        train_samples(version)
