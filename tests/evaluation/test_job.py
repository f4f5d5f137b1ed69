"""An evaluation of a real checkpoint, from the run's folder to its result."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import yaml

from tasks.core import config as configs
from tasks.core.errors import DataError, UsageError
from tasks.core.files import read_json, read_lines
from tasks.dataset.building.builder import build
from tasks.dataset.tar.format import Sample
from tasks.dataset.version import versions
from tasks.evaluation import results
from tasks.evaluation.checkpoint import LoadedCheckpoint
from tasks.evaluation.contract import Members
from tasks.evaluation.job import evaluate_checkpoint
from tasks.evaluation.kinds.zero_shot import TEMPLATES, class_embeddings
from tasks.evaluation.results import EvaluationResult
from tasks.evaluation.samples import read_samples
from tasks.loader.bad import BadSampleError
from tasks.models.clip.openclip import open_clip
from tasks.models.task import Question
from tasks.runs import record
from tasks.runs.data import version_path
from tasks.runs.folder import RunFolder
from tests.conftest import ROOT, digits_config
from tests.training.helpers import make_run, train_here

STEPS = 90


@pytest.fixture(scope="module")
def trained(digits_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A short training, whose model is far from good and far from guessing."""
    run = make_run(digits_dataset, tmp_path_factory.mktemp("trained"), "train.batch_size=64", "train.lr=2e-3")
    train_here(run)
    return run


@pytest.fixture
def run(trained: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy that a test may change."""
    copy = RunFolder(tmp_path / trained.name)
    shutil.copytree(trained.path, copy.path, symlinks=True)
    return copy


def test_leaves_a_result_that_a_reader_understands(run: RunFolder, digits_dataset: Path) -> None:
    evaluate_checkpoint(run.path, STEPS, "zero_shot", "this one")
    result = results.read_result(run.evaluation(STEPS, "zero_shot"))
    assert result is not None
    assert (result.task, result.step, result.checkpoint) == (
        "zero_shot",
        STEPS,
        f"checkpoints/step_{STEPS:08d}",
    )
    assert result.question == "this one"
    assert result.samples == versions.read_manifest(versions.resolve(digits_dataset)).splits["val"].samples
    low, high = result.intervals["top1"]
    assert low < result.metrics["top1"] < high and result.chance["top1"] == pytest.approx(0.1)
    assert result.metrics["top1"] > 0.3, "a model that has learnt something beats guessing"
    assert result.metrics["top5"] > result.metrics["top1"]
    assert {"torch", "open_clip_torch", "evaluator"} <= set(result.versions)

    said = results.read_predictions(run, STEPS, "zero_shot")
    assert len(said) == 24 and all(key == prediction.key for key, (prediction,) in said.items())
    assert len({prediction.label for (prediction,) in said.values()}) > 5
    judged = read_samples(run.judged_samples(STEPS, "zero_shot"))
    assert judged is not None and len(judged.keys) == result.samples
    assert judged.data == f"{versions.resolve(digits_dataset).name} val"
    assert judged.columns["top1"].mean() == result.metrics["top1"]


def test_says_the_same_again(run: RunFolder) -> None:
    texts = []
    for _ in range(2):
        evaluate_checkpoint(run.path, STEPS, "zero_shot")
        result = results.read_result(run.evaluation(STEPS, "zero_shot"))
        assert result is not None
        texts.append(result.model_copy(update={"seconds": 0}).model_dump_json())
        shutil.rmtree(run.evaluations)
    assert texts[0] == texts[1]


def test_prompts_are_put_together_as_by_open_clip(trained: RunFolder) -> None:
    subject = LoadedCheckpoint.open(trained, configs.reload(trained.config), STEPS)
    names = ["three", "seven", "nine"]
    ours = class_embeddings(subject.embed_texts([t.replace("{}", n) for n in names for t in TEMPLATES]), 3)
    theirs = open_clip.build_zero_shot_classifier(
        subject.task.model, open_clip.get_tokenizer("tarmac-digits"), names, TEMPLATES, device=subject.device
    )
    assert torch.allclose(torch.from_numpy(ours), theirs.T.cpu(), atol=1e-5)


def test_of_private_data_nothing_is_kept_but_figures(run: RunFolder) -> None:
    run.config.write_text(run.config.read_text().replace("private: false", "private: true"))
    evaluate_checkpoint(run.path, STEPS, "zero_shot")
    assert results.read_result(run.evaluation(STEPS, "zero_shot")) is not None
    assert results.read_predictions(run, STEPS, "zero_shot") == {}
    (there,) = {path for path in run.path.rglob("*") if path.is_file() and b"digit_" in path.read_bytes()}
    assert there == run.judged_samples(STEPS, "zero_shot"), "for a comparison, which shows no key"


def test_a_torn_checkpoint_is_not_judged(run: RunFolder) -> None:
    os.truncate(run.checkpoint(STEPS) / "model.safetensors", 100)
    with pytest.raises(DataError, match=rf"step_{STEPS:08d}: missing or torn"):
        evaluate_checkpoint(run.path, STEPS, "zero_shot")
    assert not run.evaluation(STEPS, "zero_shot").exists()


def test_a_step_without_checkpoint_and_an_unknown_task_are_named(run: RunFolder) -> None:
    with pytest.raises(DataError, match="step_00000031"):
        evaluate_checkpoint(run.path, 31, "zero_shot")
    with pytest.raises(UsageError, match="'retrieval', but: zero_shot"):
        evaluate_checkpoint(run.path, STEPS, "retrieval")


def test_a_label_that_is_nowhere_names_a_sample(digits_dataset: Path, run: RunFolder) -> None:
    text = run.config.read_text()
    assert "kind: zero_shot\n" in text
    run.config.write_text(text.replace("kind: zero_shot\n", "kind: zero_shot\n    label: species\n"))
    with pytest.raises(DataError, match=r"val: sample 'digit_\d+' has no label.*'species'"):
        evaluate_checkpoint(run.path, STEPS, "zero_shot")


def test_a_result_that_does_not_parse_is_none(tmp_path: Path) -> None:
    assert results.read_result(tmp_path / "missing.json") is None
    for content in ("", "{", "{}", '{"task": "zero_shot"}'):
        (tmp_path / "torn.json").write_text(content)
        assert results.read_result(tmp_path / "torn.json") is None
    assert results.read_predictions(RunFolder(tmp_path), 1, "zero_shot") == {}


def test_a_metric_that_is_not_finite_is_null_in_the_file_and_read_again(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    result = EvaluationResult(
        task="odd",
        step=1,
        checkpoint="checkpoints/step_00000001",
        metrics={"top1": 0.5, "f1": math.nan},
        intervals={"f1": (math.nan, math.inf)},
        chance={"f1": math.nan},
        split="val",
        samples=1,
        seconds=0.1,
        versions={},
    )
    results.write_result(run, result, [])
    assert read_json(run.evaluation(1, "odd"))["metrics"] == {"top1": 0.5, "f1": None}
    again = results.read_result(run.evaluation(1, "odd"))
    assert again is not None and again.metrics["top1"] == 0.5
    odd = (again.metrics["f1"], *again.intervals["f1"], again.chance["f1"])
    assert all(map(math.isnan, odd))


def with_a_bad_sample(dataset: Path, copy: Path) -> Path:
    """A copy of the dataset's version with a flipped bit in the first sample of `val`, which makes a first batch
    of one sample empty."""
    source = versions.resolve(dataset)
    version = copy / "versions" / source.name
    shutil.copytree(source, version)
    shard = version / "val/000000.tar"
    content = bytearray(shard.read_bytes())
    content[600] ^= 1
    shard.unlink()
    shard.write_bytes(content)
    return version


def test_a_bad_sample_is_left_out_and_not_counted(
    run: RunFolder, digits_dataset: Path, tmp_path: Path
) -> None:
    """Under `loader.on_bad: replace`; otherwise it ends the evaluation by name."""
    version = with_a_bad_sample(digits_dataset, tmp_path / "dataset")
    state = record.load_record(run)
    moved = state.data[0].model_copy(update={"dataset": str(tmp_path / "dataset")})
    record.save_record(run, state.having(data=[moved]))
    with pytest.raises(BadSampleError, match=r"^val/000000\.tar row 0, key '"):
        evaluate_checkpoint(run.path, STEPS, "zero_shot")
    run.config.write_text(run.config.read_text().replace("on_bad: raise", "on_bad: replace"))
    evaluate_checkpoint(run.path, STEPS, "zero_shot")
    result = results.read_result(run.evaluation(STEPS, "zero_shot"))
    assert result is not None
    assert result.samples == versions.read_manifest(version).splits["val"].samples - 1


SLOWLY = """
import json, sys, time
from pathlib import Path
from tasks.core.files import append_line
from tasks.evaluation import checkpoint, job
whole = checkpoint.LoadedCheckpoint.embed_images
def slowly(self, *given, **more):
    for batch in whole(self, *given, **more):
        for key in batch.keys:
            append_line(Path(sys.argv[3]), json.dumps({"key": key}))
        time.sleep(0.02)
        yield batch
checkpoint.LoadedCheckpoint.embed_images = slowly
job.evaluate_checkpoint(Path(sys.argv[1]), int(sys.argv[2]), "zero_shot")
"""


def test_a_killed_evaluation_goes_on_to_the_same_result(run: RunFolder, tmp_path: Path) -> None:
    values = yaml.safe_load(run.config.read_text())
    values["evaluate"]["batch_size"] = 2
    run.config.write_text(yaml.safe_dump(values))
    evaluate_checkpoint(run.path, STEPS, "zero_shot")

    def left() -> tuple[str, bytes, bytes]:
        result = results.read_result(run.evaluation(STEPS, "zero_shot"))
        assert result is not None
        files = (run.judged_samples(STEPS, "zero_shot"), run.predictions(STEPS, "zero_shot"))
        return result.model_copy(update={"seconds": 0}).model_dump_json(), *(
            path.read_bytes() for path in files
        )

    undisturbed, asked = left(), tmp_path / "asked.jsonl"
    shutil.rmtree(run.evaluations)
    samples = len(read_lines_of(run))
    for share in (0.3, 0.7, 2.0):
        process = subprocess.Popen(
            [sys.executable, "-c", SLOWLY, str(run.path), str(STEPS), str(asked)],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        while len(read_lines(asked)[0]) < share * samples and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert run.evaluation_journal(STEPS, "zero_shot").exists() == (share < 1)
    assert left() == undisturbed, "the numbers are the very same"
    keys = [row["key"] for row in read_lines(asked)[0]]
    assert len(set(keys)) == samples and len(keys) - samples <= 2 * 2, "each kill cost a batch of two"


def read_lines_of(run: RunFolder) -> list[str]:
    """The keys of the split that is evaluated."""
    version = version_path(record.load_record(run).data[0])
    return [str(key) for key in pd.read_parquet(version / "samples/val.parquet")["key"]]


def test_a_pass_goes_on_after_any_batch_without_bad_samples(
    run: RunFolder, digits_dataset: Path, tmp_path: Path
) -> None:
    version = with_a_bad_sample(digits_dataset, tmp_path / "dataset")
    values = yaml.safe_load(run.config.read_text())
    values["evaluate"]["batch_size"] = 1
    values["loader"]["on_bad"] = "replace"
    run.config.write_text(yaml.safe_dump(values))
    subject = LoadedCheckpoint.open(run, configs.reload(run.config), STEPS, version)
    every = list(subject.losses("val"))
    assert every[0].after == (2, 1) and len(every) == len(read_lines_of(run)) - 1
    for place in (0, 5, len(every) - 2, len(every) - 1):
        assert list(subject.losses("val", every[place].after)) == every[place + 1 :]
    assert subject.feed.split("val", after=every[5].after)._budget.spent == 1  # type: ignore[union-attr]


@dataclass(frozen=True)
class Numbered:
    """Asks three questions of each sample."""

    passes: list[int]

    def questions(self, members: Members) -> list[Question]:
        number = members["n"].decode()
        return [Question([], torch.empty(0), f"{number}.{place}", "yes") for place in range(3)]

    def answer(self, questions: Sequence[Question], most_tokens: int) -> list[str]:
        self.passes.append(len(questions))
        return [f"to {one.text} among {len(questions)}" for one in questions]


def test_answers_go_on_within_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Sample(str(n), {"n": b"%d" % n}) for n in range(5)]
    monkeypatch.setattr(LoadedCheckpoint, "_first", lambda *_: samples)
    task, feed = Numbered([]), SimpleNamespace(judged_at_once=5)
    subject: Any = LoadedCheckpoint(task, torch.device("cpu"), "fp32", feed, None)  # type: ignore[arg-type]
    every = list(subject.answers("val", 5, 9))
    assert task.passes == [6, 6, 3] and len(every) == 15
    for skip in range(16):
        task.passes.clear()
        assert list(subject.answers("val", 5, 9, skip)) == every[skip:]
        assert sum(task.passes) - len(every[skip:]) < 6, "no more than one pass is repeated"


def test_another_dataset_is_judged_by_its_own_samples(
    run: RunFolder, raw_digits: Path, tmp_path: Path
) -> None:
    few = digits_config(
        raw_digits, tmp_path, "dataset.filter={label: [zero, one, two]}", "dataset.splits={val: 0.5}"
    )
    version = build(few).version
    values = yaml.safe_load(run.config.read_text())
    values["evaluate"]["tasks"] = [{"kind": "zero_shot", "name": "few", "dataset": str(version)}]
    run.config.write_text(yaml.safe_dump(values))
    evaluate_checkpoint(run.path, STEPS, "few")
    result = results.read_result(run.evaluation(STEPS, "few"))
    assert result is not None and result.chance["top1"] == pytest.approx(1 / 3)
    assert result.samples == versions.read_manifest(version).splits["val"].samples
    assert result.notes == [f"evaluated on {version}"]
    assert not results.read_predictions(run, STEPS, "few"), "its keys may be those of other samples here"
    judged = read_samples(run.judged_samples(STEPS, "few"))
    assert judged is not None and judged.data == f"{version.name} val"
