"""What makes a run the same run, and what its folder holds before anything trains."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from tasks.core import config as configs
from tasks.core.errors import DataError, TarmacError, UsageError
from tasks.core.files import write_atomic, write_json
from tasks.core.lock import Lease, pinned
from tasks.core.quarantine_file import NAME, Quarantined, home, to_text
from tasks.core.schema import Config, Train
from tasks.runs import gpus, record
from tasks.runs.data import data_of, left_out_by, version_path
from tasks.runs.folder import RunFolder
from tasks.runs.identity import DataRef, identity, run_id
from tasks.runs.plan import changes_to_resume, locate, plan, resolve, resolve_for
from tests.conftest import ROOT
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
    ("overrides", "quarantine", "expected"),
    [
        ((), None, "00566ef3cea4"),
        (
            (
                "train.batch_size=256",
                "train.lr=5e-4",
                "train.warmup=0.05",
                "train.precision=bf16",
                "train.model.name=ViT-B-32",
                "train.model.pretrained=openai",
            ),
            None,
            "b96a84b367af",
        ),
        (("loader.reader=streaming", "train.threads=4", "train.weight_decay=0.1"), "ab12", "e5451ac4d9de"),
    ],
)
def test_ids_of_runs_that_are_there_stay_as_they_are(
    overrides: tuple[str, ...], quarantine: str | None, expected: str
) -> None:
    """Pinned: another id would train anew what is trained already."""
    config = configs.load_config(ROOT / "configs" / "digits-clip.yaml", overrides)
    data = [DataRef(dataset="data/digits", version="303b88922a05")]
    assert run_id(identity(config, data, quarantine)) == expected


BEFORE = {
    "clip": ({"name": "tarmac/digits"}, "0b8b6adf4c5a", [0.9, 0.98]),
    "clip_reinforced": ({"name": "ViT-B-16", "teachers": [{"width": 8}]}, "80096066ca59", [0.9, 0.98]),
    "vlm": (
        {"vision": "tarmac/chat", "language": "tarmac/chat", "pixel_shuffle": 2},
        "206afeb6a776",
        [0.9, 0.999],
    ),
    "ct_clip": ({"vision": "tarmac/phantoms", "text": "tarmac/reports"}, "365acb486578", [0.9, 0.99]),
    "external": ({"name": "RN50"}, "e660e96b5a2d", [0.9, 0.999]),
}
"""By recipe: a model, the id of a run of it, and the betas that it trained with, from before recipes had defaults
of their own."""
EARLIER_KEYS = {
    "data": None, "batch_size": 8, "steps": 100, "epochs": None, "micro_batch": None, "pack": None, "lr": 1e-3,
    "warmup": 0, "schedule": "cosine", "cooldown": 0, "freeze": [], "weight_decay": 0.2, "grad_clip": None,
    "ema": None, "precision": "fp32", "deterministic": True, "seed": 0, "checkpoint_every": 50, "threads": 2,
    "log_every": 10, "on_stall": "report",
}  # fmt: skip
"""The train block of such a run's own config, which has every key that there was."""


@pytest.mark.parametrize("recipe", list(BEFORE))
def test_a_run_from_before_recipes_had_defaults_keeps_its_id_and_its_meaning(
    recipe: str, tmp_path: Path
) -> None:
    model, expected, betas = BEFORE[recipe]
    dataset = {"output": "d", "modality": "image_text", "source": {"kind": "shards", "path": "x.tar"}}
    own = {"recipe": recipe, "model": model, **EARLIER_KEYS}
    (tmp_path / "config.yaml").write_text(json.dumps({"name": "a", "dataset": dataset, "train": own}))
    data = [DataRef(dataset="d", version="0" * 12)]
    elsewhere = configs.load_config(tmp_path / "config.yaml")
    (tmp_path / "run.json").write_text("{}")
    for read in (configs.load_config, configs.reload):
        config = read(tmp_path / "config.yaml")
        train = config.train
        assert train is not None and run_id(identity(config, data)) == expected
        assert (train.grad_clip, train.decay, train.lr_floor) == (0, "matrices", 0)
        assert list(train.betas) == betas and train.weight_decay == 0.2 and train.deterministic
    assert elsewhere.train is not None
    if recipe == "vlm":
        assert elsewhere.train.grad_clip == 1.0, "a config that is no run's has the recipe's defaults"


def test_a_planned_run_says_what_its_recipe_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes read the folder alone, on whatever machine, and a later Tarmac may have other
    defaults."""
    version = make_version(tmp_path)
    config = changed(make_config(tmp_path), "train.precision", "auto")
    assert config.train is not None
    by_epochs = {**config.train.model_dump(), "steps": None, "epochs": 20, "warmup": None}
    config = config.model_copy(update={"train": Train.model_validate(by_epochs)})
    monkeypatch.setattr(gpus, "gpus_here", lambda: 0)
    resolved = resolve(config, version).train
    assert resolved is not None and resolved.steps is not None and resolved.precision == "fp32"
    assert resolved.warmup == resolved.steps // 10, "the recipe's own, now that the steps are known"
    monkeypatch.setattr(gpus, "gpus_here", lambda: 2)
    for capability, expected in (("8.0\n9.0", "bf16"), ("7.5\n8.0", "fp32")):
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\nprintf '{capability}\\n'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        found = resolve(config, version).train
        assert found is not None and found.precision == expected


class Grown(Train):
    """The block of some later day."""

    patience: int = 3
    averaging: dict[str, float] | None = None


def test_a_new_key_counts_unless_it_is_at_its_default(tmp_path: Path) -> None:
    config, data = make_config(tmp_path), [DataRef(dataset="d", version="0" * 12)]
    assert config.train is not None

    def id_with(**values: Any) -> str:
        train = Grown.model_validate({**config.train.model_dump(), **values})
        return run_id(identity(config.model_copy(update={"train": train}), data))

    before = run_id(identity(config, data))
    assert id_with() == id_with(patience=3) == before
    assert len({before, id_with(patience=4), id_with(averaging={}), id_with(averaging={"decay": 0.9})}) == 4
    assert id_with(log_every=1, checkpoint_every=20, on_stall="restart") == before


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loader.workers", 3),
        ("loader.prefetch", 9),
        ("loader.on_bad", "replace"),
        ("track.mode", "online"),
        ("evaluate.every", 20),
        ("train.log_every", 1),
        ("train.checkpoint_every", 20),
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
    state = record.load_record(run)
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


def test_a_folder_of_weights_is_named_by_the_content_that_shapes_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    version = make_version(tmp_path)
    for name in ("mine", "copy"):
        (tmp_path / name / "tokenizer").mkdir(parents=True)
        for file in ("config.json", "model.safetensors", "tokenizer/tokenizer.json"):
            (tmp_path / name / file).write_text(file)
    (tmp_path / "copy/README.md").write_text("of no effect")
    model = {"vision": "tarmac/chat", "language": "tarmac/chat", "pixel_shuffle": 2, "max_side": 32}
    config, copy = (
        make_config(tmp_path, train={"recipe": "vlm", "model": {**model, "pretrained": name}})
        for name in ("mine", "copy")
    )
    run = plan(config, version)
    kept = configs.reload(run.config).train
    assert kept is not None and kept.model["pretrained"] == str(tmp_path / "mine")
    assert locate(copy, version) == run
    found = {run}
    for file in ("config.json", "model.safetensors", "tokenizer/tokenizer.json"):
        (tmp_path / "mine" / file).write_text("other")
        found.add(locate(config, version))
    assert len(found) == 4
    shutil.rmtree(tmp_path / "mine")
    with pytest.raises(UsageError, match=r"train\.model\.pretrained: there is no file .*mine"):
        locate(changed(config, "train.model.pretrained", str(tmp_path / "mine")), version)


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
    record.save_record(run, record.load_record(run).having(state="succeeded"))
    before = run.config.stat().st_mtime_ns
    assert plan(config, version) == run
    assert run.config.stat().st_mtime_ns == before
    plan(changed(config, "evaluate.every", 20), version)
    evaluate = configs.reload(run.config).evaluate
    assert evaluate is not None and evaluate.every == 20
    assert record.load_record(run).state == "succeeded"


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
        printed = " ".join(capsys.readouterr().err.split())
        assert "is at work without these changes: evaluate.every; run it again" in printed
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
    assert [ref.dataset for ref in record.load_record(moved).data] == [str(new / "data")]


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
        record.load_record(run)


def with_another(tmp_path: Path, *weights: float) -> tuple[Config, Path, Path]:
    """A config that mixes in a second dataset, and the versions of both."""
    version, other = make_version(tmp_path), make_version(tmp_path / "more", samples=30)
    (other.parents[1] / "current").symlink_to(f"versions/{other.name}")
    config = make_config(tmp_path)
    folders = (config.dataset.output, other.parents[1])
    shares = [{"dataset": str(one), "weight": weight} for one, weight in zip(folders, weights, strict=True)]
    return changed(config, "train.data", shares), version, other


def test_a_run_names_and_pins_all_that_it_mixes(tmp_path: Path) -> None:
    config, version, other = with_another(tmp_path, 3, 1)
    run = plan(config, version)
    data = record.load_record(run).data
    assert [(ref.version, ref.weight) for ref in data] == [(version.name, 0.75), (other.name, 0.25)]
    assert [version_path(ref) for ref in data] == [version, other]
    for mine in (version, other):
        assert pinned(mine.parents[1]) == {mine.name: [run.id]}
    shares = configs.reload(run.config).train.data  # type: ignore[union-attr]
    assert shares is not None and all(share.dataset.is_absolute() for share in shares)
    assert locate(changed(config, "train.data", shares_of(config, 6, 2)), version) == run
    assert locate(changed(config, "train.data", shares_of(config, 1, 1)), version) != run
    assert locate(make_config(tmp_path), version) != run
    alone = changed(config, "train.data", shares_of(config, 5, 1)[:1])
    assert locate(alone, version) == locate(make_config(tmp_path), version)


def test_a_mix_is_resumed_on_all_of_its_versions(tmp_path: Path) -> None:
    config, version, other = with_another(tmp_path, 3, 1)
    run = plan(config, version)
    newer = make_version(tmp_path / "more", samples=31)
    (other.parents[1] / "current").unlink()
    (other.parents[1] / "current").symlink_to(f"versions/{newer.name}")
    assert locate(config, version) != run
    changes = changes_to_resume(run)
    assert changes[0] == f"dataset.output={version}"
    assert locate(configs.load_config(run.config, changes), version) == run


def test_a_run_is_resumed_where_it_lies(tmp_path: Path) -> None:
    run = plan(make_config(tmp_path), make_version(tmp_path))
    (tmp_path / "archived").mkdir()
    moved = RunFolder(run.path.rename(tmp_path / "archived" / run.name))
    changes = changes_to_resume(moved)
    assert f"runs={tmp_path / 'archived'}" in changes
    renamed = RunFolder(moved.path.rename(tmp_path / "archived" / "kept"))
    with pytest.raises(UsageError, match=f"RUN: kept cannot go on: its config makes {run.name} now"):
        changes_to_resume(renamed)


def shares_of(config: Config, *weights: float) -> list[dict[str, Any]]:
    assert config.train is not None and config.train.data is not None
    pairs = zip(config.train.data, weights, strict=True)
    return [{"dataset": str(share.dataset), "weight": weight} for share, weight in pairs]


def test_quarantine_of_a_mixed_in_dataset_is_left_out_too(tmp_path: Path) -> None:
    config, version, other = with_another(tmp_path, 3, 1)
    before = locate(config, version)
    bad = Quarantined(other.name, "train", "train/000000.tar", "k1", "member.checksum")
    write_atomic(home(other) / NAME, to_text([bad]))
    run = plan(config, version)
    assert run != before
    assert left_out_by(run) == [bad]


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ([{"dataset": "elsewhere"}], "the dataset's output, must be in the list"),
        ([{"dataset": "OUTPUT"}, {"dataset": "OUTPUT/."}], "is listed twice"),
        ([{"dataset": "OUTPUT", "weight": 0}], "weight"),
    ],
)
def test_shares_that_cannot_be_mixed_are_refused(
    tmp_path: Path, shares: list[dict[str, Any]], says: str
) -> None:
    config = make_config(tmp_path)
    output = str(config.dataset.output)
    named = [{**share, "dataset": share["dataset"].replace("OUTPUT", output)} for share in shares]
    with pytest.raises(UsageError, match=says):
        changed(config, "train.data", named)


def test_what_a_mix_cannot_do_is_refused(tmp_path: Path) -> None:
    config, version, other = with_another(tmp_path, 1, 1)
    with pytest.raises(UsageError, match="streaming reads one dataset"):
        changed(config, "loader.reader", "streaming")
    values = config.model_dump(mode="json")
    values["train"] |= {"steps": None, "epochs": 2}
    with pytest.raises(UsageError, match="mixed datasets have no common epoch"):
        configs.validate(values, "test")
    (other / "manifest.json").unlink()
    with pytest.raises(UsageError, match=r"train\.data: .* holds no version of a dataset"):
        plan(config, version)


OLD = {"kind": "zero_shot", "name": "old"}


def test_a_task_on_another_dataset_keeps_its_version(tmp_path: Path) -> None:
    version, other = make_version(tmp_path), make_version(tmp_path / "other", samples=40)
    (tmp_path / "other/data/current").symlink_to(other)
    evaluate = {"every": 40, "tasks": ["zero_shot", {**OLD, "dataset": str(tmp_path / "other/data")}]}
    config = make_config(tmp_path, evaluate=evaluate)
    assert locate(config, version) == locate(make_config(tmp_path), version), "it shapes no weights"
    run = plan(config, version)
    kept = configs.reload(run.config).evaluate
    assert kept is not None and kept.tasks[1].arguments == {"dataset": str(other)}
    assert pinned(tmp_path / "other/data") == {other.name: [run.id]}
    own = {"every": 40, "tasks": [{**OLD, "dataset": str(tmp_path / "data")}]}
    kept = resolve(make_config(tmp_path, evaluate=own), version).evaluate
    assert kept is not None and kept.tasks[0].arguments == {"dataset": str(version)}
    newer = make_version(tmp_path / "other", samples=60)
    (tmp_path / "other/data/current").unlink()
    (tmp_path / "other/data/current").symlink_to(newer)
    kept = configs.reload(plan(config, version).config).evaluate
    assert kept is not None and kept.tasks[1].arguments == {"dataset": str(other)}, "all of its checkpoints"
    assert configs.dump(resolve_for(run, config, version)) == run.config.read_text()
    kept = configs.reload(plan(config, version, fresh=True).config).evaluate
    assert kept is not None and kept.tasks[1].arguments == {"dataset": str(newer)}
    (tmp_path / "other/data/current").unlink()
    with pytest.raises(
        UsageError, match=r"evaluate\.tasks: old: dataset: .*/other/data holds no version of a dataset"
    ):
        plan(config, version)


def test_a_run_from_before_step_0_was_evaluated_goes_on_without_that(tmp_path: Path) -> None:
    version = make_version(tmp_path)
    (tmp_path / "old.pt").write_bytes(b"weights")
    tuned = {"model": {"name": "tarmac/digits", "pretrained": str(tmp_path / "old.pt")}}
    config = make_config(tmp_path, train=tuned)
    run = plan(config, version)
    assert configs.reload(run.config).evaluated_steps == [0, 40]
    run.config.write_text(run.config.read_text().replace("  start: null\n", ""))
    assert configs.reload(run.config).evaluated_steps == [40]
    save(run, 10, b"weights")
    assert configs.reload(plan(config, version).config).evaluated_steps == [40]
    save(run, 0, b"weights")
    assert configs.reload(plan(config, version).config).evaluated_steps == [0, 40]
