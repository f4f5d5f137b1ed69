"""The command `plan`: what a run would do, in lines that a person reads."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from flows.cli import main
from flows.commands.plan import (
    TrainingLeft,
    evaluation_line,
    gpu_lines,
    setting_lines,
    taken_of_gpu,
    time_lines,
    training_left,
)
from tasks.core.errors import UsageError
from tasks.core.schema import Config
from tasks.dataset.version import quarantine, versions
from tasks.dataset.version.quarantine import Quarantined
from tasks.loader.settings import LoaderSettings, Measurement, write_settings
from tasks.runs import footprint, gpus, record
from tasks.runs.footprint import Footprint
from tasks.runs.plan import plan
from tasks.runs.record import Attempt
from tasks.supervision.status import RunStatus
from tests.conftest import digits_config
from tests.dataset import raw
from tests.dataset.building.prepared import parquet
from tests.flows.birds import COUNT, json_of, output_of, published
from tests.soak import kill_builds
from tests.supervision.fakes import save


def test_a_plan_before_and_after(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = output_of(capsys, "plan", "birds.yaml")
    assert "there is no version yet" in first and f"{COUNT} raw samples" in first
    assert f"{COUNT} to convert into" in first and "with 2 workers" in first
    assert first.endswith("nothing was written; to do it: tarmac build birds.yaml\n")
    assert not (birds / "data").exists()
    version = published("birds.yaml")
    assert f"up to date: version {version}" in output_of(capsys, "plan", "birds.yaml")
    (birds / "birds/0007.png").write_bytes(raw.png(7007))
    assert json_of(capsys, "plan", "birds.yaml")["build"]["work"]["to_convert_shards"] == 1


def test_what_the_build_meets_is_shown_before_what_the_training_lacks(
    birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key that repeats leaves one sample, and so no batch: the cause is the key."""
    train = "{recipe: clip, model: {name: tarmac/digits}, batch_size: 512, steps: 4, lr: 1.0e-3, warmup: 1, checkpoint_every: 4}"
    config = birds / "birds.yaml"
    config.write_text(f"{config.read_text()}\ntrain: {train}\n")
    assert main(["plan", "birds.yaml"]) == 2
    shown = capsys.readouterr()
    assert f"{COUNT} to convert into" in shown.out
    assert "✗ train.batch_size: a batch takes 512 of" in shown.err
    assert main(["plan", "birds.yaml", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert not answer["ok"] and answer["build"]["work"]["listed"] == COUNT
    assert answer["error"].startswith("train.batch_size: a batch takes 512 of")
    rows = (birds / "birds/captions.csv").read_text().splitlines()
    (birds / "birds/captions.csv").write_text(
        "\n".join([f"{rows[0]},id", *(f"{row},7" for row in rows[1:])]) + "\n"
    )
    assert main(["plan", "birds.yaml", "--set", "dataset.source.key=id"]) == 1
    shown = capsys.readouterr()
    assert (
        "the build would stop" in shown.out and "key.duplicate" in shown.out and "batch_size" not in shown.err
    )


def test_what_is_compared_first_is_part_of_the_plan(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grouped = ("plan", "birds.yaml", "--set", "dataset.splits={val: 0.3, group_by: content}")
    shown = output_of(capsys, *grouped)
    assert f"{COUNT} samples are compared first, which decodes each once more: about " in shown
    assert "with 2 workers; which of them are copies, and move, is known only then" in shown
    work = json_of(capsys, *grouped)["build"]["work"]
    assert work["to_compare"] == COUNT and work["compare_seconds"] > 0
    assert "compared first" not in output_of(capsys, "plan", "birds.yaml")


def test_what_training_leaves_out_is_reported(birds: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = published("birds.yaml")
    assert "left out" not in output_of(capsys, "plan", "birds.yaml") + output_of(
        capsys, "build", "birds.yaml"
    )
    lost = [
        Quarantined(version, "train", "train/000000.tar", f"birds_{n}", "member.checksum") for n in range(3)
    ]
    quarantine.add(birds / "data/birds", lost)
    line = "3 of 51 train samples are left out: quarantine.jsonl; tarmac repair data/birds takes back what is"
    assert f"\n!         {line}" in output_of(capsys, "plan", "birds.yaml")
    assert f"\n! {line}" in output_of(capsys, "build", "birds.yaml")
    for command in ("plan", "build"):
        assert json_of(capsys, command, "birds.yaml")["left_out"] == {"train": 3}


def test_a_plan_of_mostly_broken_data_names_the_faults(
    birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(COUNT):
        (birds / f"birds/{number:04d}.png").write_text("<html>")
    shown = output_of(capsys, "plan", "birds.yaml", code=1)
    assert "!         20 of 20 samples tried: image.not_an_image   captions.csv:" in shown
    why = "the build would stop: at least 20 of the 20 samples looked at are rejected (100.0%)"
    assert f"\n!         {why}" in shown
    assert shown.endswith("\n✗ the build would stop, as shown above; nothing was written\n")
    assert main(["plan", "birds.yaml", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False and answer["build"]["stops"].startswith("at least 20 of the 20")


def test_a_plan_of_containers_tries_the_first_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    parquet(tmp_path / "raw")
    source = "{kind: table, path: raw, image: image, caption: caption, key: key}"
    Path("rows.yaml").write_text(
        f"name: rows\ndataset: {{output: data/rows, modality: image_text, source: {source}}}\n"
    )
    shown = output_of(capsys, "plan", "rows.yaml").replace("\u202f", " ")
    assert "          reads 3 containers in order, " in shown and "; 60 samples in them\n" in shown
    assert "to convert them: about " in shown and "by the first 20 samples\n" in shown
    published("rows.yaml")
    os.utime("raw/1.parquet")
    shown = output_of(capsys, "plan", "rows.yaml").replace("\u202f", " ")
    assert "          1 of 3 containers are new or changed (1.parquet)\n" in shown
    assert "because each shard holds samples of many; 60 samples in them\n" in shown
    shown = output_of(capsys, "plan", "rows.yaml", "--set", "dataset.private=true")
    assert "1 of 3 containers are new or changed\n" in shown and "1.parquet" not in shown


def test_a_plan_counts_what_an_interrupted_build_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write, config_of = kill_builds.SOURCES["files"]
    write(tmp_path / "raw", 0)
    config = config_of(tmp_path / "raw", tmp_path / "out")
    Path(tmp_path, "many.yaml").write_text(json.dumps(config.model_dump(mode="json")))
    assert kill_builds.kill_build("files", tmp_path / "raw", tmp_path / "out", shards=3)
    done = len(list((tmp_path / "out/staging").glob("*.arrow")))
    monkeypatch.chdir(tmp_path)
    shown = output_of(capsys, "plan", "many.yaml")
    assert f"          {done} of " in shown
    assert " shards are there from a build that was interrupted\n" in shown


def test_a_plan_says_how_long_the_training_takes_as_far_as_that_was_measured(
    digits_dataset: Path, tmp_path: Path
) -> None:
    config = make_config(digits_dataset, tmp_path)
    run = plan(config, versions.resolve(digits_dataset))
    assert config.train is not None
    unknown = ["how long it takes is not known yet: tarmac run measures it first, and tarmac status shows it"]
    assert list(time_lines(config, config.train)) == unknown
    found = LoaderSettings(
        workers=2,
        prefetch=2,
        reason="a test",
        taken_per_s=500,
        measurements=(Measurement(workers=2, samples_per_s=100, first_batch_s=1),),
    )
    write_settings(run.loader, found)
    here = Attempt(
        started=time.time(),
        host=socket.gethostname(),
        boot_id="",
        pid=1,
        pid_started=0,
        job=None,
        code_digest="",
        versions={},
    )
    written = record.load_record(run)
    record.save_record(run, written.model_copy(update={"attempts": [here]}))
    took = config.train.steps * config.train.batch_size / 100 if config.train.steps else 0
    (line,) = time_lines(config, config.train)
    assert line.replace("\u202f", " ").startswith(f"about {took / 60:.0f} min on this machine without evalu")
    assert line.endswith(f"by the 100 samples/s that were measured for {run.name}")
    write_settings(run.loader, found.model_copy(update={"reached_per_s": 80}))
    (line,) = time_lines(config, config.train)
    assert line.endswith(f"by the 80 samples/s that were measured for {run.name}"), "fed by the loader"
    larger = config.train.model_copy(update={"batch_size": 32})
    assert list(time_lines(config, larger)) == unknown, "another batch has another pace"


@pytest.mark.parametrize("command", ["plan", "run"])
def test_an_evaluation_of_a_split_that_will_not_be_is_refused_before_the_build(
    command: str, birds: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {"recipe": "clip", "model": {"name": "tarmac/digits"}, "batch_size": 8, "steps": 5, "lr": 0.1}
    text = Path("birds.yaml").read_text() + f"\ntrain: {json.dumps({**train, 'checkpoint_every': 5})}\n"
    Path("trained.yaml").write_text(text + "evaluate: {every: 5, tasks: [retrieval]}\n")
    assert main([command, "trained.yaml", "--set", "dataset.splits.val=0"]) == 2
    why = "✗ evaluate.tasks: retrieval: dataset.splits makes train; hold a part out, such as by --set"
    assert why in capsys.readouterr().err
    assert not (birds / "data").exists()


def test_a_plan_reports_a_wrong_schedule_and_doubtful_settings(
    birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = {"recipe": "clip", "model": {"name": "tarmac/digits"}, "batch_size": 51, "steps": 5, "lr": 0.1}
    text = Path("birds.yaml").read_text()
    text += f"\ntrain: {json.dumps({**train, 'checkpoint_every': 5})}\n"
    Path("trained.yaml").write_text(text)
    early = output_of(capsys, "plan", "trained.yaml", "--set", "train.warmup=9")
    assert "there is no version yet" in early and "!         train.warmup: all 5 steps" in early
    published("birds.yaml")
    changed = output_of(capsys, "plan", "trained.yaml", "--set", "train.warmup=9", "--set", "name=other")
    assert "to do it: tarmac run trained.yaml --set train.warmup=9 --set name=other\n" in changed
    assert "!         train.warmup: all 5 steps are among the 9 of the warm-up" in changed
    warmed = json_of(capsys, "plan", "trained.yaml", "--set", "train.warmup=9")
    assert warmed["doubts"][0].startswith("train.warmup: all 5 steps")
    Path("nightly.yaml").write_text(text + 'schedule: {cron: "99 2 * * *"}\n')
    assert main(["plan", "nightly.yaml"]) == 2
    assert "nightly.yaml: schedule.cron: '99 2 * * *' (UTC) is no schedule" in capsys.readouterr().err


def make_config(dataset: Path, folder: Path, *overrides: str) -> Config:
    return digits_config(folder, folder, f"dataset.output={dataset}", *overrides)


def test_a_plan_refuses_what_would_only_show_after_the_training(digits_dataset: Path, tmp_path: Path) -> None:
    version = versions.resolve(digits_dataset)
    config = make_config(digits_dataset, tmp_path, "evaluate.tasks=[{kind: zero_shot, split: vla}]")
    with pytest.raises(UsageError, match="no 'vla'"):
        training_left(config, version.name)
    run = plan(make_config(digits_dataset, tmp_path), version)
    for step in (200, 400, 600):
        save(run, step, b"weights")
    finer = make_config(digits_dataset, tmp_path, "train.checkpoint_every=50", "evaluate.every=50")
    with pytest.raises(UsageError, match=r"evaluate\.every: 50 asks for step 50"):
        training_left(finer, version.name)
    (tmp_path / "file").touch()
    config = make_config(digits_dataset, tmp_path, f"runs={tmp_path}/file")
    with pytest.raises(UsageError, match=r"runs: .*file is a file; give a folder"):
        training_left(config, None, 1797)


def summary_of(left: TrainingLeft | None) -> tuple[str, bool]:
    assert left is not None
    return left.summary, left.is_left


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            (),
            [
                "600 steps of 64 samples; learning rate 0.001 after 50 steps of warm-up, then falling as a cosine to 0",
                "AdamW with betas 0.9 and 0.98, eps 1e-06, weight decay 0.2 on matrices; no clipping",
                "fp32 on the CPU; a resume is exact to the bit",
            ],
        ),
        (
            ("train.precision=auto", "engine.train.gpus=1", "train.grad_clip=1", "train.schedule=constant"),
            ["then constant", "gradients clipped at 1", "bf16 on GPUs; a resume is not exact to the bit"],
        ),
        (
            ("engine.train.gpus=1", "train.deterministic=true"),
            ["exact to the bit, which forbids TensorFloat-32 and the fastest kernels"],
        ),
        (
            ("train.steps=100", "train.checkpoint_every=20"),
            ["checkpoints on the disk: at most 5 of ", " in all; train.keep keeps fewer"],
        ),
        (
            ("train.steps=100", "train.checkpoint_every=20", "train.keep={latest: 1, best: 1}"),
            ["checkpoints on the disk: at most 3 of "],
        ),
    ],
)
def test_a_plan_says_all_that_a_recipe_or_the_device_decided_on(
    changes: tuple[str, ...],
    says: list[str],
    digits_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "compute_in_bf16", lambda: True)
    config = make_config(digits_dataset, tmp_path, *changes)
    left = training_left(config, versions.resolve(digits_dataset).name)
    assert left is not None
    lines = list(setting_lines(config, left.settings))
    assert all(said in "; ".join(lines) for said in says), lines


def test_a_plan_names_the_one_gpu_of_several(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(digits_dataset, tmp_path)
    version = versions.resolve(digits_dataset).name
    for count, says in ((8, ", on one of 8 GPUs"), (1, ""), (0, "")):
        monkeypatch.setattr(gpus, "gpus_here", lambda count=count: count)
        assert summary_of(training_left(config, None, 1797)) == (f"clip, after the build{says}", True)
        new = training_left(config, version)
        assert new is not None and new.summary.startswith("a new run, digits-clip-")
        assert new.summary.endswith(says) and ("GPU" in new.summary) == (count > 1)


@pytest.mark.parametrize(
    ("gpus_of_machine", "changes", "says"),
    [
        (0, (), "each as soon as it is saved, on the CPU of this machine (evaluate.when: idle)"),
        (0, ("evaluate.when=after",), "when the training has ended, on the CPU of this machine"),
        (1, (), "when the training, which takes all GPUs, has ended, on a GPU of this machine"),
        (
            1,
            ("evaluate.when=beside",),
            "as soon as it is saved, on a GPU of this machine, beside the training",
        ),
        (2, (), "each as soon as no training holds a GPU, on a GPU of this machine"),
        (2, ("engine.train={gpus: 2}",), "when the training, which takes all GPUs, has ended"),
        (0, ("engine.train={kind: slurm, gpus: 4}",), "has ended, in a Slurm job of one GPU"),
        (0, ("engine.evaluate={kind: slurm, gpus: 1}",), "as soon as it is saved, in Slurm jobs of 1 GPU"),
    ],
)
def test_a_plan_says_when_and_where_it_evaluates(
    gpus_of_machine: int,
    changes: tuple[str, ...],
    says: str,
    digits_dataset: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gpus, "gpus_here", lambda: gpus_of_machine)
    config = make_config(digits_dataset, tmp_path, *changes)
    assert config.train is not None
    line = evaluation_line(config, config.train)
    assert line is not None and says in line, line
    assert evaluation_line(config.model_copy(update={"evaluate": None}), config.train) is None


def test_a_run_is_up_to_date_with_the_evaluations_asked_for(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(digits_dataset, tmp_path)
    version = versions.resolve(digits_dataset)
    run = plan(config, version)
    monkeypatch.setattr(RunStatus, "is_complete", True)
    assert summary_of(training_left(config, version.name)) == (f"up to date: {run.name}", False)
    renamed = make_config(digits_dataset, tmp_path, "evaluate.tasks=[{kind: zero_shot, name: zz}]")
    assert summary_of(training_left(renamed, version.name)) == (f"goes on: {run.name}, planned", True)


def test_a_plan_for_gpus_says_what_a_rank_takes(
    digits_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Footprint(10**9, 10**9, 2 * 10**9, 10**9, 29 * 10**9, 5 * 10**9, 10**9, 3 * 10**9, 10**12)
    monkeypatch.setattr(footprint, "footprint_of", lambda config: taken)
    monkeypatch.setattr(gpus, "memory_of_gpu", lambda: 24e9)
    config = make_config(digits_dataset, tmp_path, "engine.train={gpus: 1}")
    left = training_left(config, versions.resolve(digits_dataset).name)
    lines = "; ".join(gpu_lines(config, taken_of_gpu(config, left))).replace("\u202f", " ")
    assert "a rank takes 30.8 GB: weights 1.00 GB" in lines and "a GPU here has 24.0 GB" in lines
    assert "an evaluation takes 2.80 GB" in lines and "computes 1 TFLOP" in lines
    on_cpu = make_config(digits_dataset, tmp_path)
    assert taken_of_gpu(on_cpu, left) is None and list(gpu_lines(on_cpu, None)) == []

    def refuse(config: object) -> Footprint:
        raise UsageError("train.model.vision: no model a/b can be found")

    monkeypatch.setattr(footprint, "footprint_of", refuse)
    (line,) = gpu_lines(config, taken_of_gpu(config, left))
    assert line == "what a rank takes of its GPU is not known: train.model.vision: no model a/b can be found"


def test_suggested_commands_name_the_config_and_its_changes(
    birds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line after a build, and the one that accepts a loss, can be pasted."""
    train = {"recipe": "clip", "model": {"name": "tarmac/digits"}, "batch_size": 8, "steps": 5, "lr": 0.1}
    text = Path("birds.yaml").read_text() + f"\ntrain: {json.dumps({**train, 'checkpoint_every': 5})}\n"
    Path("trained.yaml").write_text(text)
    published("trained.yaml")
    built = output_of(capsys, "build", "trained.yaml", "--set", "train.lr=0.2")
    assert built.endswith("\n  next     tarmac run trained.yaml --set train.lr=0.2\n")
    lines = (birds / "birds/captions.csv").read_text().splitlines()[:30]
    (birds / "birds/captions.csv").write_text("\n".join(lines) + "\n")
    shown = output_of(capsys, "plan", "trained.yaml", "--set", "train.lr=0.2", code=1)
    assert "or accept the loss: tarmac build trained.yaml --set train.lr=0.2 --accept-loss" in shown
