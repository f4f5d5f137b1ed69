"""What makes a run the same run, and what its folder holds before anything trains."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tasks.core import config as configs
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.files import write_json
from tasks.core.lock import Lease, pinned
from tasks.core.schema import Config
from tasks.runs import record
from tasks.runs.data import data_of, version_path
from tasks.runs.plan import locate, plan, resolve
from tests.supervision.fakes import make_config, save


def make_version(folder: Path, samples: int = 80) -> Path:
    manifest = {"splits": {"train": {"shards": 1, "samples": samples, "bytes": 1}}}
    draft = folder / "draft"
    draft.mkdir(parents=True)
    (draft / "manifest.json").write_text(json.dumps(manifest))
    version = folder / "data" / "versions" / data_of(draft)[0].version
    version.parent.mkdir(parents=True, exist_ok=True)
    draft.rename(version)
    return version


def changed(config: Config, path: str, value: Any) -> Config:
    values = config.model_dump(mode="json")
    *blocks, key = path.split(".")
    block = values
    for name in blocks:
        block = block[name]
    block[key] = value
    return configs.validate(values, "test")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train.lr", 2e-3),
        ("train.seed", 1),
        ("train.batch_size", 8),
        ("train.steps", 41),
        ("train.warmup", 3),
        ("train.precision", "bf16"),
        ("train.threads", 1),
        ("train.weight_decay", 0.1),
        ("train.model", {"name": "ViT-B-32"}),
        ("loader.shuffle", "samples"),
        ("loader.reader", "streaming"),
    ],
)
def test_what_shapes_the_weights_makes_another_run(tmp_path: Path, key: str, value: Any) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    assert locate(changed(config, key, value), version) != locate(config, version)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loader.workers", 3),
        ("loader.prefetch", 9),
        ("loader.on_bad", "replace"),
        ("track.mode", "online"),
        ("evaluate.every", 20),
        ("train.log_every", 1),
        ("engine.evaluate.jobs", 4),
        ("dataset.output", "/elsewhere"),
    ],
)
def test_what_does_not_shape_them_is_the_same_run(tmp_path: Path, key: str, value: Any) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    assert locate(changed(config, key, value), version) == locate(config, version)


def test_other_data_is_another_run_and_a_moved_dataset_is_not(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    here, other = make_version(tmp_path / "a"), make_version(tmp_path / "b", samples=81)
    run = locate(config, here)
    assert locate(config, other) != run
    moved = tmp_path / "moved"
    here.rename(moved)
    assert locate(config, moved) == run
    assert version_path(data_of(moved)[0]) == moved


def test_planning_writes_a_folder_that_needs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = changed(changed(config, "dataset.output", "data"), "runs", "runs")
    run = plan(config, version)
    assert run.path == tmp_path / "runs" / f"fake-{run.id}"
    state = record.load(run)
    assert (state.state, state.id, state.attempts) == ("planned", run.id, [])
    assert state.identity["digest"].startswith(run.id)
    assert state.data[0].version == version.name
    kept = configs.reload(run.config)
    assert kept.dataset.output == tmp_path / "data" and kept.runs == tmp_path / "runs"
    assert kept == resolve(config, version)
    assert pinned(tmp_path / "data") == {version.name: [run.id]}
    assert not run.lease.exists()


def test_epochs_become_steps(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path, train={"steps": None, "epochs": 3})
    kept = configs.reload(plan(config, version).config)
    assert kept.train is not None and (kept.train.steps, kept.train.epochs) == (60, None)
    assert locate(config, version) == locate(make_config(tmp_path, train={"steps": 60}), version)
    with pytest.raises(UsageError, match=r"train\.epochs: .* make no batch of 400"):
        plan(make_config(tmp_path, train={"steps": None, "epochs": 1, "batch_size": 400}), version)


def test_weights_are_named_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    version = make_version(tmp_path)
    (tmp_path / "mine.pt").write_bytes(b"one")
    (tmp_path / "copy.pt").write_bytes(b"one")
    config, copy = (
        make_config(tmp_path, train={"model": {"name": "tarmac/digits", "pretrained": name}})
        for name in ("mine.pt", "copy.pt")
    )
    run = plan(config, version)
    kept = configs.reload(run.config).train
    assert kept is not None and kept.model["pretrained"] == str(tmp_path / "mine.pt")
    assert locate(copy, version) == run
    (tmp_path / "mine.pt").write_bytes(b"two")
    assert locate(config, version) != run
    (tmp_path / "mine.pt").unlink()
    with pytest.raises(UsageError, match=r"train\.model\.pretrained: there is no file .*mine\.pt"):
        locate(changed(config, "train.model.pretrained", str(tmp_path / "mine.pt")), version)


def test_an_evaluation_of_a_step_long_passed_is_refused(tmp_path: Path) -> None:
    """Nobody could ever do it: a resumed run goes on after its newest checkpoint."""
    version, config = (
        make_version(tmp_path),
        make_config(tmp_path, evaluate={"every": 20, "tasks": ["zero_shot"]}),
    )
    run = plan(config, version)
    for step in (20, 40):
        save(run, step, b"weights")
    finer = changed(config, "evaluate.every", 10)
    before = run.config.read_bytes()
    with pytest.raises(UsageError, match=r"every: 10 asks for step 10, .* \(it has 20, 40\).*--fresh"):
        plan(finer, version)
    assert run.config.read_bytes() == before
    for step in (10, 30):
        write_json(run.evaluation(step, "zero_shot"), {})
    assert plan(finer, version) == run, "what has its result needs no checkpoint"
    (run.checkpoint(40) / "model.safetensors").write_bytes(b"torn")
    run.evaluation(30, "zero_shot").unlink()
    assert plan(finer, version) == run, "a run that goes on from step 20 comes by step 30 again"


def test_planning_again_keeps_the_record_and_takes_the_new_evaluations(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    run = plan(config, version)
    record.save(run, record.load(run).having(state="succeeded"))
    before = run.config.stat().st_mtime_ns
    assert plan(config, version) == run
    assert run.config.stat().st_mtime_ns == before
    plan(changed(config, "evaluate.every", 20), version)
    evaluate = configs.reload(run.config).evaluate
    assert evaluate is not None and evaluate.every == 20
    assert record.load(run).state == "succeeded"


def test_a_run_in_use_keeps_its_config_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    run = plan(config, version)
    before = run.config.read_bytes()
    with Lease(run.lease):
        plan(config, version)
        assert capsys.readouterr().err == ""
        assert plan(changed(config, "evaluate.every", 20), version) == run
        assert run.config.read_bytes() == before
        told = " ".join(capsys.readouterr().err.split())
        assert "is at work without these changes: evaluate.every; run it again" in told
        with pytest.raises(TarmacError, match=f"is in use.*tarmac cancel .*{run.id}"):
            plan(config, version, fresh=True)


def test_a_new_run_is_waited_for_until_its_holder_has_written_it(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    run = plan(config, version)
    kept = run.record.read_bytes()
    run.record.unlink()
    with Lease(run.lease):
        writer = threading.Timer(0.5, run.record.write_bytes, [kept])
        writer.start()
        assert plan(config, version) == run
        writer.join()


def test_a_moved_project_finds_its_data_where_they_lie_now(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    run = plan(make_config(old), make_version(old))
    old.rename(new)
    moved = plan(make_config(new), next((new / "data/versions").iterdir()))
    assert moved.name == run.name
    assert [ref.dataset for ref in record.load(moved).data] == [str(new / "data")]


@pytest.mark.parametrize("runs", ["file", "file/below"])
def test_runs_that_cannot_be_made_are_a_usage_error(tmp_path: Path, runs: str) -> None:
    (tmp_path / "file").touch()
    config = changed(make_config(tmp_path), "runs", str(tmp_path / runs))
    with pytest.raises(UsageError, match=r"^runs: .* cannot be made: Not a directory"):
        plan(config, make_version(tmp_path))


def test_fresh_moves_the_old_run_away(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    run = plan(config, version)
    (run.path / "metrics.jsonl").write_text("old\n")
    assert plan(config, version, fresh=True) == run
    assert not run.metrics.exists()
    (archived,) = (run.path.parent / "archive").iterdir()
    assert (archived / "metrics.jsonl").read_text() == "old\n"


def test_a_folder_without_a_manifest_is_no_version(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no manifest\.json"):
        plan(make_config(tmp_path), tmp_path)


def test_an_unreadable_record_says_what_to_do(tmp_path: Path) -> None:
    version, config = make_version(tmp_path), make_config(tmp_path)
    run = plan(config, version)
    run.record.write_text("{")
    with pytest.raises(DataError, match=r"run\.json: is no run record .*plan the run again"):
        record.load(run)
